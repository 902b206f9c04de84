//! The device compiler: the pinned nightly, or the distribution's.

use crate::manifest::TOOLCHAIN;
use std::{
    env, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Where a device compiler may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// The pinned nightly of rustup, else the distribution's compiler.
    Auto,
    /// The pinned nightly of rustup.
    Rustup,
    /// `/usr/bin/rustc` with its library sources (Debian: rustc-web, cargo-web, rust-web-src).
    Distribution,
}

/// Oldest release whose `core` and code generator the kernels compile with.
const OLDEST: (u32, u32) = (1, 96);

/// A compiler that can build `core` for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// Path of cargo.
    pub cargo: PathBuf,
    /// Path of rustc.
    pub rustc: PathBuf,
    /// Folder of the library sources (`core`, `alloc`).
    pub library: PathBuf,
    /// A release that takes unstable options only when told to (`RUSTC_BOOTSTRAP`).
    pub bootstrap: bool,
    /// The compiler's own description: release, commit, LLVM.
    pub version: String,
}

/// Why there is no device compiler.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pinned nightly is not usable.
    #[error("{reason}; install it with\n  {}", install_rustup())]
    Rustup {
        /// What is wrong with it.
        reason: String,
    },
    /// The distribution's compiler is not usable.
    #[error("{reason}; on Debian, install it with\n  {INSTALL_DISTRIBUTION}")]
    Distribution {
        /// What is wrong with it.
        reason: String,
    },
    /// Neither is.
    #[error(
        "no device compiler: {rustup}; {distribution}. Install the pinned nightly\n  {}\nor, \
         where rustup cannot download, Debian's compiler\n  {INSTALL_DISTRIBUTION}",
        install_rustup()
    )]
    Neither {
        /// What is wrong with the nightly.
        rustup: String,
        /// What is wrong with the distribution's compiler.
        distribution: String,
    },
}

/// Where the distribution's compiler lies.
const BIN: &str = "/usr/bin";

const INSTALL_DISTRIBUTION: &str = "apt-get install rustc-web cargo-web rust-web-src";

fn install_rustup() -> String {
    format!("rustup toolchain install {TOOLCHAIN} --profile minimal -c rust-src")
}

impl Toolchain {
    /// Finds a device compiler.
    ///
    /// # Errors
    /// None of the kind asked for is installed; says what to install.
    pub fn find(source: Source) -> Result<Self, Error> {
        match source {
            Source::Rustup => rustup().map_err(|reason| Error::Rustup { reason }),
            Source::Distribution => {
                distribution(Path::new(BIN)).map_err(|reason| Error::Distribution { reason })
            }
            Source::Auto => rustup().or_else(|rustup| {
                distribution(Path::new(BIN)).map_err(|distribution| Error::Neither {
                    rustup,
                    distribution,
                })
            }),
        }
    }

    /// The installed compilers, the preferred one first.
    pub fn installed() -> Vec<Self> {
        [rustup(), distribution(Path::new(BIN))]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The compiler in `bin` whose libraries lie in `sysroot`.
    fn at(bin: &Path, bootstrap: bool) -> Result<Self, String> {
        let (cargo, rustc) = (bin.join("cargo"), bin.join("rustc"));
        let verbose = output(clean(&rustc).arg("-vV"))?;
        let sysroot = output(clean(&rustc).args(["--print", "sysroot"]))?;
        let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
        if !library.join("core/src/lib.rs").is_file() {
            return Err(format!(
                "{} has no library sources (rust-src)",
                rustc.display()
            ));
        }
        if !cargo.is_file() {
            return Err(format!("{} is missing", cargo.display()));
        }
        Ok(Self {
            cargo,
            rustc,
            library,
            bootstrap,
            version: describe(&verbose),
        })
    }
}

/// A command that does not see the surrounding cargo's or rustup's choices of compiler.
pub fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(chooses_a_build) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether an environment variable belongs to the surrounding build.
fn chooses_a_build(name: &str) -> bool {
    const KEPT: [&str; 4] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR"];
    let cargo = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
    let rust = name.starts_with("RUSTC") || name == "RUSTFLAGS" || name == "RUSTDOCFLAGS";
    cargo || rust || matches!(name, "RUSTUP_TOOLCHAIN" | "MAKEFLAGS" | "MFLAGS")
}

fn rustup() -> Result<Toolchain, String> {
    let sysroot = output(
        clean(Path::new("rustup"))
            .env("RUSTUP_AUTO_INSTALL", "0")
            .args(["run", TOOLCHAIN, "rustc", "--print", "sysroot"]),
    )
    .map_err(|reason| format!("the toolchain {TOOLCHAIN} is not installed ({reason})"))?;
    Toolchain::at(&Path::new(sysroot.trim()).join("bin"), false)
}

fn distribution(bin: &Path) -> Result<Toolchain, String> {
    let toolchain = Toolchain::at(bin, true)?;
    match release(&toolchain.version) {
        Some(release) if release >= OLDEST => Ok(toolchain),
        _ => Err(format!(
            "{} is {}; {}.{} or newer is needed",
            toolchain.rustc.display(),
            toolchain.version,
            OLDEST.0,
            OLDEST.1
        )),
    }
}

/// The first line of `rustc -vV` and LLVM's version.
fn describe(verbose: &str) -> String {
    let first = verbose.lines().next().unwrap_or_default();
    match verbose
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))
    {
        Some(llvm) => format!("{first}, LLVM {llvm}"),
        None => first.to_owned(),
    }
}

/// Major and minor release in a description.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix("rustc ")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The standard output of a command that succeeds.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program}: {error}"),
    })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(message
            .lines()
            .next()
            .unwrap_or("it failed")
            .trim()
            .to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_described_by_release_commit_and_llvm() {
        let verbose = "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nbinary: rustc\nhost: x\n\
                       LLVM version: 22.1.2\n";
        let version = describe(verbose);
        assert_eq!(
            version,
            "rustc 1.97.0-nightly (e50aa6fba 2026-05-19), LLVM 22.1.2"
        );
        assert_eq!(release(&version), Some((1, 97)));
        assert_eq!(release("clang 22"), None);
    }

    #[test]
    fn the_surrounding_build_is_hidden_and_the_registry_settings_stay() {
        for name in [
            "CARGO",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_PROFILE_RELEASE_DEBUG",
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTFLAGS",
            "RUSTUP_TOOLCHAIN",
            "CARGO_TARGET_DIR",
        ] {
            assert!(chooses_a_build(name), "{name}");
        }
        for name in [
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "CARGO_REGISTRIES_CRATES_IO_PROTOCOL",
            "RUSTUP_HOME",
            "PATH",
            "RUST_BACKTRACE",
        ] {
            assert!(!chooses_a_build(name), "{name}");
        }
    }

    #[test]
    fn an_old_or_missing_compiler_is_refused_with_what_to_install() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = distribution(folder.path()).expect_err("no compiler there");
        assert!(missing.contains("is not installed"), "{missing}");
        let error = Error::Neither {
            rustup: "a".into(),
            distribution: missing,
        }
        .to_string();
        assert!(
            error.contains(TOOLCHAIN) && error.contains("rust-web-src"),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_release_older_than_the_sources_need_is_refused() {
        use std::{fs, os::unix::fs::PermissionsExt};
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = folder.path().join("lib/rustlib/src/rust/library/core/src");
        fs::create_dir_all(&library).expect("a folder");
        fs::write(library.join("lib.rs"), "").expect("a file");
        let script = format!(
            "#!/bin/sh\ncase $1 in -vV) echo 'rustc 1.63.0 (x)';; *) echo '{}';; esac\n",
            folder.path().display()
        );
        for name in ["rustc", "cargo"] {
            let path = folder.path().join(name);
            fs::write(&path, &script).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
        }
        let error = distribution(folder.path()).expect_err("1.63 is too old");
        assert!(
            error.contains("1.63.0") && error.contains("1.96"),
            "{error}"
        );
    }
}
