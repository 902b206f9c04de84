//! Embeds the PTX: writes `ptx.rs`, a table of the modules, to `OUT_DIR`.
//!
//! The committed PTX serves as long as the kernel sources' hash is the manifest's; then a build
//! needs nothing but stable Rust. When the sources have changed, `cargo xtask ptx` rebuilds it
//! into `OUT_DIR`, if a device compiler is there.
//!
//! | variable | effect |
//! |---|---|
//! | `CAKE_RMSNORM_REBUILD_PTX=0` | never rebuild: embed what is committed |
//! | `CAKE_RMSNORM_PTX_DIR=DIR` | embed the PTX and manifest in `DIR` (built by `cargo xtask ptx --out DIR`) |

#[path = "ptx/manifest.rs"]
#[allow(dead_code)] // the half that builds is xtask's
mod manifest;

use manifest::Manifest;
use std::{
    env,
    error::Error,
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// The PTX to embed.
struct Ptx {
    folder: PathBuf,
    manifest: Manifest,
    /// Built from other sources than those beside it.
    stale: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for name in ["CAKE_RMSNORM_REBUILD_PTX", "CAKE_RMSNORM_PTX_DIR"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    for path in [
        "build.rs",
        "ptx",
        "kernels-gpu/src",
        "kernels-gpu/Cargo.toml",
    ] {
        if root.join(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if let Some(ptx) = choose(&root, &out)? {
        let path = out.join("ptx.rs");
        fs::write(&path, table(&ptx)).map_err(|error| at(&path, error))?;
    }
    Ok(())
}

/// The user's PTX, the committed, or a rebuilt one. `None` after an error that cargo reports.
fn choose(root: &Path, out: &Path) -> Result<Option<Ptx>, Box<dyn Error>> {
    if let Some(folder) = env::var_os("CAKE_RMSNORM_PTX_DIR") {
        return Ok(Some(read(&root.join(folder), None)?));
    }
    let kernels = root.join("kernels-gpu");
    let sources = match kernels.join("src").is_dir() {
        true => Some(manifest::source_hash(&kernels).map_err(|error| at(&kernels, error))?),
        // The published crate: nothing to compare with.
        false => None,
    };
    let committed = read(&root.join("ptx"), sources.as_deref());
    if sources.is_none() || committed.as_ref().is_ok_and(|ptx| !ptx.stale) {
        return Ok(Some(committed?));
    }
    if env::var("CAKE_RMSNORM_REBUILD_PTX").is_ok_and(|value| value == "0") {
        warn("the PTX is older than kernels-gpu/ and was not rebuilt (CAKE_RMSNORM_REBUILD_PTX=0)");
        return Ok(Some(committed?));
    }
    match rebuild(root, out) {
        Ok(folder) => Ok(Some(read(&folder, sources.as_deref())?)),
        Err(reason) if uses_gpu() => {
            report(
                "error",
                &format!("the PTX is older than kernels-gpu/. {reason}"),
            );
            Ok(None)
        }
        // Nothing in this build runs the PTX.
        Err(reason) => {
            warn(&format!(
                "the PTX is older than kernels-gpu/ and stays so. {reason}"
            ));
            Ok(Some(committed?))
        }
    }
}

fn read(folder: &Path, sources: Option<&str>) -> io::Result<Ptx> {
    let manifest =
        Manifest::read(folder).map_err(|error| at(&folder.join(manifest::FILE), error))?;
    let stale = sources.is_some_and(|sources| sources != manifest.sources);
    Ok(Ptx {
        folder: folder.to_owned(),
        manifest,
        stale,
    })
}

/// Whether this build has a backend that runs PTX.
fn uses_gpu() -> bool {
    ["CARGO_FEATURE_CUDA", "CARGO_FEATURE_CUDARC"]
        .iter()
        .any(|name| env::var_os(name).is_some())
}

/// Runs `cargo xtask ptx` into `out`. Its builds have a target folder of their own: the outer
/// cargo holds the lock of the usual one.
fn rebuild(root: &Path, out: &Path) -> Result<PathBuf, String> {
    let folder = out.join("ptx");
    // OUT_DIR is TARGET/PROFILE/build/PACKAGE/out; all profiles share the rebuild.
    let target = out.ancestors().nth(4).unwrap_or(out).join("ptx-rebuild");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let kept = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR"];
        if name.starts_with("CARGO") && !kept.iter().any(|kept| name.starts_with(kept)) {
            command.env_remove(name);
        }
    }
    command
        .current_dir(root)
        // Clippy would otherwise check xtask instead of building it.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("CARGO_TARGET_DIR", &target)
        .args(["run", "--quiet", "--package", "xtask", "--", "ptx", "--out"])
        .arg(&folder);
    let output = command
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if output.status.success() {
        return Ok(folder);
    }
    let log = String::from_utf8_lossy(&output.stderr);
    // Warnings of the host build come first.
    let start = log.find("\nerror").map_or(0, |position| position + 1);
    Err(format!(
        "`cargo xtask ptx` says: {}\nCAKE_RMSNORM_REBUILD_PTX=0 embeds the old PTX all the same.",
        log[start..].trim_end()
    ))
}

/// The table of modules, as Rust source.
fn table(ptx: &Ptx) -> String {
    let mut text = String::from(
        "/// A PTX module.\n\
         #[derive(Clone, Copy, Debug)]\n\
         pub struct Module {\n\
         \x20   /// Name, as in the kernels' contracts.\n\
         \x20   pub name: &'static str,\n\
         \x20   /// Lowest compute capability that loads it, ten times.\n\
         \x20   pub sm: u32,\n\
         \x20   /// The PTX text.\n\
         \x20   pub ptx: &'static str,\n\
         }\n\n\
         /// The embedded modules.\n\
         pub static MODULES: &[Module] = &[\n",
    );
    for module in &ptx.manifest.modules {
        let path = ptx.folder.join(&module.file);
        let (name, sm) = (&module.name, module.sm);
        let _ = writeln!(
            text,
            "    Module {{ name: {name:?}, sm: {sm}, ptx: include_str!({path:?}) }},"
        );
    }
    let Manifest {
        compiler, sources, ..
    } = &ptx.manifest;
    let _ = write!(
        text,
        "];\n\n\
         /// The compiler that wrote the PTX.\n\
         pub const COMPILER: &str = {compiler:?};\n\n\
         /// Hash of the kernel sources that the PTX was built from.\n\
         pub const SOURCES: &str = {sources:?};\n\n\
         /// Whether the kernel sources had changed since.\n\
         pub const STALE: bool = {};\n",
        ptx.stale
    );
    text
}

fn warn(message: &str) {
    report("warning", message);
}

/// Tells cargo, line by line: its protocol has no line breaks.
fn report(kind: &str, message: &str) {
    for line in message.lines() {
        println!("cargo::{kind}={line}");
    }
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
