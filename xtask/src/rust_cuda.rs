//! Builds with a user's rust-cuda code generator, `librustc_codegen_nvvm.so`.

use crate::{
    device_build::{PACKAGE, TRIPLE, encoded, profile_environment, remapped, selection},
    manifest::{self, Target},
    toolchain::clean,
    workspace,
};
use object::{
    Endianness,
    elf::{DT_NEEDED, FileHeader64},
    read::elf::{Dyn, FileHeader},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Why rust-cuda cannot be used, or what it said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path names no file.
    #[error("--rust-cuda: {path} cannot be read; give the path of librustc_codegen_nvvm.so")]
    Missing {
        /// The path given.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The file is something else.
    #[error("--rust-cuda: {path} is no rustc code generator: {reason}")]
    NoBackend {
        /// The path given.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The nightly it was built with is not installed.
    #[error(
        "{backend} was built for the compiler with lib/{driver}, which no installed toolchain \
         has (searched: {}). A code generator works with the very nightly it was built with: \
         install the one in rust-cuda's rust-toolchain.toml, with the component rust-src, or \
         rebuild the code generator", .searched.join(", ")
    )]
    ForeignToolchain {
        /// The code generator.
        backend: String,
        /// The compiler library it needs.
        driver: String,
        /// The toolchains searched.
        searched: Vec<String>,
    },
    /// The nightly lacks the sources of `core`.
    #[error("{toolchain} has no library sources; run `rustup component add rust-src` for it")]
    NoSources {
        /// The toolchain's folder.
        toolchain: String,
    },
    /// libNVVM is not there.
    #[error(
        "{library}, which {backend} needs, was not found (searched: {}). It comes with the CUDA \
         toolkit (nvvm/lib64); give its folder with --libnvvm", .searched.join(", ")
    )]
    NoLibNvvm {
        /// The code generator.
        backend: String,
        /// The library's file name.
        library: String,
        /// The folders searched.
        searched: Vec<String>,
    },
    /// A program or a file.
    #[error("{path}")]
    Io {
        /// Which.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The sources did not compile.
    #[error("module {module} does not compile for compute_{sm} with rust-cuda:\n{log}")]
    Compiler {
        /// The module.
        module: String,
        /// Compute capability, ten times.
        sm: u32,
        /// What the compiler said.
        log: String,
    },
}

/// A code generator with all that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    path: PathBuf,
    toolchain: PathBuf,
    libnvvm: Option<PathBuf>,
}

impl Backend {
    /// Checks a `librustc_codegen_nvvm.so` and finds its compiler and libNVVM.
    ///
    /// # Errors
    /// The file is missing or no code generator; its compiler or libNVVM is not installed.
    pub fn find(path: &Path, libnvvm: Option<&Path>) -> Result<Self, Error> {
        Self::find_in(path, &toolchains(), &nvvm_folders(libnvvm))
    }

    fn find_in(path: &Path, toolchains: &[PathBuf], folders: &[PathBuf]) -> Result<Self, Error> {
        let missing = |source| Error::Missing {
            path: path.display().to_string(),
            source,
        };
        let path = path.canonicalize().map_err(missing)?;
        let backend = path.display().to_string();
        let data = fs::read(&path).map_err(missing)?;
        let refused = |reason: &str| Error::NoBackend {
            path: backend.clone(),
            reason: reason.to_owned(),
        };
        let needed = needed(&data).map_err(|error| refused(&error.to_string()))?;
        let driver = needed
            .iter()
            .find(|name| name.starts_with("librustc_driver-"))
            .ok_or_else(|| refused("it does not link to librustc_driver"))?;
        let holds = |toolchain: &&PathBuf| toolchain.join("lib").join(driver).is_file();
        let toolchain = toolchains
            .iter()
            .find(holds)
            .ok_or_else(|| Error::ForeignToolchain {
                backend: backend.clone(),
                driver: driver.clone(),
                searched: names(toolchains),
            })?;
        if !library(toolchain).join("core/src/lib.rs").is_file() {
            return Err(Error::NoSources {
                toolchain: toolchain.display().to_string(),
            });
        }
        let libnvvm = match needed.iter().find(|name| name.starts_with("libnvvm.so")) {
            None => None,
            Some(file) => {
                let folder = folders.iter().find(|folder| folder.join(file).is_file());
                Some(folder.cloned().ok_or_else(|| Error::NoLibNvvm {
                    backend: backend.clone(),
                    library: file.clone(),
                    searched: names(folders),
                })?)
            }
        };
        Ok(Self {
            path,
            toolchain: toolchain.clone(),
            libnvvm,
        })
    }

    /// What the manifest says of the compiler.
    pub fn description(&self) -> String {
        let toolchain = self
            .toolchain
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let hash = fs::read(&self.path).map_or_else(
            |_| "unreadable".to_owned(),
            |data| manifest::text_hash(&data)[..16].to_owned(),
        );
        format!("rustc_codegen_nvvm (sha256 {hash}…) in {toolchain}")
    }

    /// Compiles a module for a target and gives the PTX.
    ///
    /// # Errors
    /// The compiler cannot be started, or it fails.
    pub fn compile(&self, build: &Path, module: &str, target: Target) -> Result<String, Error> {
        let folder = build.join(format!("rust-cuda-build/compute_{}", target.sm));
        let mut command = self.command(&folder, module, target);
        let cargo = self.toolchain.join("bin/cargo");
        let result = command
            .output()
            .map_err(|source| io_error(&cargo, source))?;
        if !result.status.success() {
            return Err(Error::Compiler {
                module: module.to_owned(),
                sm: target.sm,
                log: String::from_utf8_lossy(&result.stderr)
                    .trim_end()
                    .to_owned(),
            });
        }
        let name = PACKAGE.replace('-', "_");
        let output = folder
            .join(TRIPLE)
            .join("release")
            .join(format!("{name}.ptx"));
        fs::read_to_string(&output).map_err(|source| io_error(&output, source))
    }

    fn command(&self, folder: &Path, module: &str, target: Target) -> Command {
        let mut command = clean(&self.toolchain.join("bin/cargo"));
        // The code generator brings its own way to abort.
        let profile = profile_environment().filter(|(key, _)| !key.ends_with("_PANIC"));
        command
            .current_dir(workspace::root())
            .env("RUSTC", self.toolchain.join("bin/rustc"))
            .env("CARGO_ENCODED_RUSTFLAGS", encoded(&self.rustflags(target)))
            // For compiler_builtins: LLVM 7 knows neither type.
            .env("CARGO_FEATURE_NO_F16_F128", "1")
            .envs(profile)
            .args([
                "rustc",
                "--package",
                PACKAGE,
                "--lib",
                "--release",
                "--crate-type",
                "cdylib",
            ])
            .args(["-Zbuild-std=core,alloc", "--target", TRIPLE, "--target-dir"])
            .arg(folder)
            .arg("--")
            .args(selection(module, target.sm));
        if let Some(nvvm) = &self.libnvvm {
            command.env(
                "LD_LIBRARY_PATH",
                prepended(nvvm, env::var_os("LD_LIBRARY_PATH")),
            );
        }
        command
    }

    fn rustflags(&self, target: Target) -> Vec<OsString> {
        let mut backend = OsString::from("-Zcodegen-backend=");
        backend.push(&self.path);
        let mut flags = vec![backend];
        flags.extend(
            [
                "-Zunstable-options",
                "-Zcrate-attr=feature(register_tool)",
                "-Zcrate-attr=register_tool(nvvm_internal)",
                "-Zcrate-attr=no_std",
                "-Zsaturating_float_casts=false",
                "-Cpanic=immediate-abort",
            ]
            .map(OsString::from),
        );
        // Left to itself the code generator contracts to fma, which changes bits.
        flags.push(format!("-Cllvm-args=-arch=compute_{} -fma=0", target.sm).into());
        flags.extend(manifest::FLAGS.iter().map(OsString::from));
        flags.push(remapped(workspace::root(), "/cake-rmsnorm"));
        flags
    }
}

/// The shared libraries that an ELF file asks for.
fn needed(data: &[u8]) -> object::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let Some((dynamic, strings)) = sections.dynamic(endian, data)? else {
        return Ok(Vec::new());
    };
    let strings = sections.strings(endian, data, strings)?;
    let needed = dynamic
        .iter()
        .filter(|entry| entry.tag32(endian) == Some(DT_NEEDED));
    needed
        .map(|entry| {
            let name = entry.string(endian, strings)?;
            Ok(String::from_utf8_lossy(name).into_owned())
        })
        .collect()
}

/// The folders of rustup's toolchains.
fn toolchains() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".rustup")));
    let entries = home.and_then(|home| fs::read_dir(home.join("toolchains")).ok());
    let mut folders: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders
}

/// The folders that may hold libNVVM, the user's first.
fn nvvm_folders(given: Option<&Path>) -> Vec<PathBuf> {
    if let Some(folder) = given {
        return vec![folder.to_owned()];
    }
    let loader = env::var_os("LD_LIBRARY_PATH");
    let loader = loader.iter().flat_map(env::split_paths);
    let toolkits = [
        "CUDA_PATH",
        "CUDA_HOME",
        "CUDA_ROOT",
        "CUDA_TOOLKIT_ROOT_DIR",
    ];
    let toolkits = toolkits.iter().filter_map(env::var_os).map(PathBuf::from);
    let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
    loader
        .chain(toolkits.chain(usual).map(|root| root.join("nvvm/lib64")))
        .collect()
}

fn library(toolchain: &Path) -> PathBuf {
    toolchain.join("lib/rustlib/src/rust/library")
}

fn prepended(folder: &Path, paths: Option<OsString>) -> OsString {
    let mut all = folder.as_os_str().to_owned();
    if let Some(paths) = paths.filter(|paths| !paths.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(paths);
    }
    all
}

fn names(paths: &[PathBuf]) -> Vec<String> {
    match paths {
        [] => vec!["nothing".to_owned()],
        paths => paths
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
    }
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.display().to_string(),
        source,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
