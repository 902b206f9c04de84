//! `cargo xtask ptx`: build the committed PTX, or check it.

use crate::{
    device_build::{self, Job},
    manifest::{self, Manifest, TARGETS, Target},
    postprocess, rust_cuda,
    toolchain::{self, Source, Toolchain},
    workspace,
};
use cake_rmsnorm_kernels::{KERNELS, contract::Kernel};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    thread,
};

/// Arguments of `cargo xtask ptx`.
#[derive(clap::Args)]
pub struct Args {
    /// Check that the committed PTX fits the sources; rebuild and compare where the compiler of
    /// the manifest is installed.
    #[arg(long, conflicts_with_all = ["out", "rust_cuda"])]
    check: bool,
    /// Folder for the PTX and its manifest [default: ptx, with --rust-cuda target/ptx/rust-cuda].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The device compiler.
    #[arg(long, value_enum, default_value_t = Source::Auto)]
    compiler: Source,
    /// Compile with rust-cuda: path of librustc_codegen_nvvm.so.
    #[arg(long, value_name = "PATH", conflicts_with = "compiler")]
    rust_cuda: Option<PathBuf>,
    /// Folder of libnvvm.so, for --rust-cuda.
    #[arg(long, value_name = "DIR", requires = "rust_cuda")]
    libnvvm: Option<PathBuf>,
    /// Compile these modules alone, for the newest target they have: for quick trials. The PTX
    /// stays stale until everything is built.
    #[arg(long, value_name = "MODULE", value_delimiter = ',', conflicts_with_all = ["check", "rust_cuda"])]
    only: Vec<String>,
}

/// Why the PTX could not be built or is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder.
    #[error("{path}")]
    Io {
        /// Where.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// No device compiler.
    #[error(transparent)]
    Toolchain(#[from] toolchain::Error),
    /// The device compiler failed.
    #[error(transparent)]
    Build(#[from] device_build::Error),
    /// The rust-cuda build failed.
    #[error(transparent)]
    RustCuda(#[from] rust_cuda::Error),
    /// The entries are not the contracts'.
    #[error(transparent)]
    Entries(#[from] postprocess::Error),
    /// `--only` names no module.
    #[error("--only {name}: there is no such module; there are {}", .modules.join(", "))]
    NoModule {
        /// What was asked for.
        name: String,
        /// What there is.
        modules: Vec<&'static str>,
    },
    /// The check found differences.
    #[error("the committed PTX is not fresh:\n{}\nbuild it with `cargo xtask ptx`", .0.join("\n"))]
    Stale(Vec<String>),
}

/// A finished PTX file.
pub struct Built {
    /// The module.
    pub module: String,
    /// The target.
    pub target: Target,
    /// Its text.
    pub text: String,
}

/// Runs the command.
///
/// # Errors
/// The PTX cannot be built or written, or the check fails.
pub fn run(args: &Args) -> Result<(), Error> {
    if args.check {
        return check();
    }
    let build = workspace::target().join("ptx");
    let (compiler, modules, out) = if let Some(backend) = &args.rust_cuda {
        let backend = rust_cuda::Backend::find(backend, args.libnvvm.as_deref())?;
        let compile = |module: &str, target| Ok(backend.compile(&build, module, target)?);
        let modules = build_all(&[], compile)?;
        (backend.description(), modules, build.join("rust-cuda"))
    } else {
        let toolchain = Toolchain::find(args.compiler)?;
        let modules = build_with(&toolchain, &build, &args.only)?;
        (toolchain.version, modules, workspace::ptx())
    };
    let out = args.out.clone().unwrap_or(out);
    if args.only.is_empty() {
        write(&out, compiler, &modules)?;
    } else {
        write_some(&out, &modules)?;
    }
    println!("{} files in {}", modules.len(), out.display());
    Ok(())
}

/// The modules that the contracts name, with the targets they are built for.
fn jobs(kernels: &[Kernel]) -> impl Iterator<Item = (&'static str, Target)> {
    let modules: BTreeSet<_> = kernels.iter().map(|kernel| kernel.module).collect();
    modules.into_iter().flat_map(move |module| {
        let targets = TARGETS.iter().filter(move |target| {
            postprocess::kernels_of(kernels, module, target.sm)
                .next()
                .is_some()
        });
        targets.map(move |target| (module, *target))
    })
}

/// Compiles the modules named in `only`, or all.
fn build_with(toolchain: &Toolchain, build: &Path, only: &[String]) -> Result<Vec<Built>, Error> {
    let root = workspace::root();
    // Compilers do not share a build folder: each would rebuild `core` after the other.
    let build = build.join(if toolchain.bootstrap {
        "distribution"
    } else {
        "nightly"
    });
    build_all(only, |module, target| {
        Ok(Job {
            toolchain,
            root,
            build: &build,
            module,
            target,
        }
        .run()?)
    })
}

/// Compiles every module for every target, the targets side by side; of modules named in `only`
/// the newest target alone.
fn build_all(
    only: &[String],
    compile: impl Fn(&str, Target) -> Result<String, Error> + Sync,
) -> Result<Vec<Built>, Error> {
    let all: Vec<_> = jobs(KERNELS).collect();
    if let Some(unknown) = only
        .iter()
        .find(|name| all.iter().all(|job| job.0 != *name))
    {
        let mut modules: Vec<_> = all.iter().map(|job| job.0).collect();
        modules.dedup();
        return Err(Error::NoModule {
            name: unknown.clone(),
            modules,
        });
    }
    let newest = |module: &str| {
        let targets = all.iter().filter(|job| job.0 == module).map(|job| job.1.sm);
        targets.max()
    };
    let wanted = |module: &str, target: Target| {
        only.is_empty()
            || only.iter().any(|name| name == module) && newest(module) == Some(target.sm)
    };
    let build = |target: &Target| -> Result<Vec<Built>, Error> {
        let jobs = all
            .iter()
            .filter(|(module, of)| of == target && wanted(module, *of));
        jobs.map(|&(module, target)| {
            let raw = compile(module, target)?;
            let text = postprocess::finish(&raw, module, target, KERNELS)?;
            Ok(Built {
                module: module.to_owned(),
                target,
                text,
            })
        })
        .collect()
    };
    let of_targets: Result<Vec<_>, Error> = thread::scope(|scope| {
        let threads: Vec<_> = TARGETS
            .iter()
            .map(|target| scope.spawn(|| build(target)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    });
    let mut all: Vec<_> = of_targets?.into_iter().flatten().collect();
    all.sort_by_key(Built::file);
    Ok(all)
}

impl Built {
    fn file(&self) -> String {
        manifest::file_name(&self.module, self.target.sm)
    }
}

/// Writes the files and the manifest, and removes PTX that no longer belongs there.
fn write(folder: &Path, compiler: String, modules: &[Built]) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| io_error(folder, source))?;
    for file in ptx_files(folder)? {
        if !modules.iter().any(|built| built.file() == file) {
            let path = folder.join(file);
            fs::remove_file(&path).map_err(|source| io_error(&path, source))?;
        }
    }
    for built in modules {
        let path = folder.join(built.file());
        fs::write(&path, &built.text).map_err(|source| io_error(&path, source))?;
    }
    let manifest = Manifest {
        sources: source_hash()?,
        compiler,
        flags: manifest::flags(),
        modules: modules.iter().map(entry).collect(),
    };
    write_manifest(&folder.join(manifest::FILE), &manifest)
}

/// Writes some of the files, which are then what the manifest says of them; that the others may not
/// fit the sources it still tells.
fn write_some(folder: &Path, modules: &[Built]) -> Result<(), Error> {
    let path = folder.join(manifest::FILE);
    let mut manifest = Manifest::read(folder).map_err(|source| io_error(&path, source))?;
    for built in modules {
        let file = folder.join(built.file());
        fs::write(&file, &built.text).map_err(|source| io_error(&file, source))?;
        let listed = manifest.modules.iter_mut();
        for module in listed.filter(|module| module.file == built.file()) {
            *module = entry(built);
        }
    }
    write_manifest(&path, &manifest)
}

fn write_manifest(path: &Path, manifest: &Manifest) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(manifest).map_err(io::Error::from);
    let write = text.and_then(|text| fs::write(path, text + "\n"));
    write.map_err(|source| io_error(path, source))
}

fn entry(built: &Built) -> manifest::Module {
    manifest::Module {
        file: built.file(),
        name: built.module.clone(),
        sm: built.target.sm,
        sha256: manifest::text_hash(built.text.as_bytes()),
    }
}

fn source_hash() -> Result<String, Error> {
    let kernels = workspace::kernels();
    manifest::source_hash(&kernels).map_err(|source| io_error(&kernels, source))
}

/// Names of the PTX files in a folder, sorted.
fn ptx_files(folder: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(folder).map_err(|source| io_error(folder, source))?;
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".ptx")).collect();
    names.sort();
    Ok(names)
}

fn check() -> Result<(), Error> {
    let folder = workspace::ptx();
    let manifest =
        Manifest::read(&folder).map_err(|source| io_error(&folder.join(manifest::FILE), source))?;
    let mut problems = differences(&folder, &manifest, &source_hash()?)?;
    let installed = Toolchain::installed();
    let same = installed
        .iter()
        .find(|toolchain| toolchain.version == manifest.compiler);
    // A rebuild of other sources says nothing more.
    let rebuilt = match same.filter(|_| problems.is_empty()) {
        Some(toolchain) => {
            let build =
                tempfile::tempdir().map_err(|source| io_error(Path::new("temp"), source))?;
            let modules = build_with(toolchain, build.path(), &[])?;
            problems.extend(
                modules
                    .iter()
                    .filter_map(|built| byte_difference(&folder, built)),
            );
            true
        }
        None => false,
    };
    if !problems.is_empty() {
        return Err(Error::Stale(problems));
    }
    println!(
        "{} PTX files fit the kernel sources",
        manifest.modules.len()
    );
    if rebuilt {
        println!("rebuilt with {}: the same bytes", manifest.compiler);
    } else {
        println!(
            "built with {}, not installed here: bytes not compared",
            manifest.compiler
        );
    }
    Ok(())
}

/// What in `folder` does not fit the manifest or the sources.
fn differences(folder: &Path, manifest: &Manifest, sources: &str) -> Result<Vec<String>, Error> {
    let mut problems = Vec::new();
    if manifest.sources != sources {
        problems.push(format!(
            "  the kernel sources or flags have changed (hash {sources}, manifest {})",
            manifest.sources
        ));
    }
    let expected: Vec<_> = jobs(KERNELS)
        .map(|(module, target)| manifest::file_name(module, target.sm))
        .collect();
    let listed: Vec<_> = manifest
        .modules
        .iter()
        .map(|module| module.file.clone())
        .collect();
    if expected != listed {
        problems.push(format!(
            "  the contracts ask for {expected:?}, the manifest has {listed:?}"
        ));
    }
    let present = ptx_files(folder)?;
    for file in present.iter().filter(|file| !listed.contains(file)) {
        problems.push(format!("  {file} is not in the manifest"));
    }
    for module in &manifest.modules {
        match fs::read(folder.join(&module.file)) {
            Ok(text) if manifest::text_hash(&text) == module.sha256 => {}
            Ok(_) => problems.push(format!("  {} was changed by hand", module.file)),
            Err(error) => problems.push(format!("  {}: {error}", module.file)),
        }
    }
    Ok(problems)
}

/// The first line in which a rebuilt file differs from the committed one.
fn byte_difference(folder: &Path, built: &Built) -> Option<String> {
    let file = built.file();
    let committed = fs::read_to_string(folder.join(&file)).unwrap_or_default();
    let (mut old, mut new) = (committed.lines(), built.text.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => return None,
            (old, new) if old == new => {}
            (old, new) => {
                let end = "the end of the file";
                return Some(format!(
                    "  {file}, line {number}: committed `{}`, rebuilt `{}`",
                    old.unwrap_or(end).trim(),
                    new.unwrap_or(end).trim()
                ));
            }
        }
    }
    None
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const TARGET: Target = Target {
        sm: 90,
        ptx_version: 80,
    };

    fn built(text: &str) -> Built {
        Built {
            module: "m".into(),
            target: TARGET,
            text: text.into(),
        }
    }

    #[test]
    fn written_files_fit_their_manifest_and_old_ones_go() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("old.sm_80.ptx"), "old").expect("a file");
        write(folder.path(), "rustc 1".into(), &[built("one\n")]).expect("written");
        assert_eq!(
            ptx_files(folder.path()).expect("a listing"),
            ["m.sm_90.ptx"]
        );
        let manifest = Manifest::read(folder.path()).expect("a manifest");
        assert_eq!(manifest.modules[0].sha256, manifest::text_hash(b"one\r\n"));
        assert_eq!(manifest.sources, source_hash().expect("a hash"));
    }

    #[test]
    fn changed_sources_and_edited_and_stray_files_are_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), "rustc 1".into(), &[built("one\n")]).expect("written");
        let manifest = Manifest::read(folder.path()).expect("a manifest");
        fs::write(folder.path().join("m.sm_90.ptx"), "two\n").expect("a file");
        fs::write(folder.path().join("n.sm_90.ptx"), "").expect("a file");
        let problems = differences(folder.path(), &manifest, "other").expect("readable");
        let all = problems.join("\n");
        for part in [
            "sources or flags",
            "m.sm_90.ptx was changed",
            "n.sm_90.ptx is not in",
        ] {
            assert!(all.contains(part), "{part} in {all}");
        }
    }

    #[test]
    fn a_rebuilt_file_that_differs_is_named_with_the_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("m.sm_90.ptx"), "one\ntwo\n").expect("a file");
        assert_eq!(byte_difference(folder.path(), &built("one\ntwo\n")), None);
        let found = byte_difference(folder.path(), &built("one\n2\n")).expect("a difference");
        assert!(
            found.contains("line 2: committed `two`, rebuilt `2`"),
            "{found}"
        );
        assert!(byte_difference(folder.path(), &built("one\n")).is_some());
    }

    #[test]
    fn a_module_without_kernels_for_a_target_is_not_built_for_it() {
        let mut newer = crate::lint::tests::kernel("newer");
        newer.min_sm = 90;
        let targets: Vec<_> = jobs(&[newer])
            .map(|(module, target)| (module, target.sm))
            .collect();
        assert_eq!(targets, [("m", 90)]);
    }

    #[test]
    fn modules_are_built_by_name() {
        let asked = Mutex::new(Vec::new());
        let build = |name: &str| {
            build_all(&[name.to_owned()], |module, target| {
                let mut asked = asked.lock().expect("no panic");
                asked.push((module.to_owned(), target.sm));
                Err(Error::Stale(Vec::new()))
            })
        };
        assert!(matches!(build("reduce"), Err(Error::Stale(_))));
        let refused = build("reduces");
        let Err(Error::NoModule { name, modules }) = refused else {
            panic!("accepted");
        };
        assert_eq!(name, "reduces");
        assert!(modules.contains(&"reduce"), "{modules:?}");
        // The newest target, and nothing for the other name.
        let asked = asked.into_inner().expect("no panic");
        assert_eq!(asked, [("reduce".to_owned(), 90)]);
    }
}
