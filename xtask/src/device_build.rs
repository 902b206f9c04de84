//! One run of the device compiler: a module of the kernels for one target.

use crate::{
    manifest::{self, Target},
    toolchain::{Toolchain, clean},
};
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Package name of the device crate.
pub const PACKAGE: &str = "cake-rmsnorm-kernels";

/// The device target of rustc.
pub const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// What to compile, and where.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The compiler.
    pub toolchain: &'a Toolchain,
    /// The checkout.
    pub root: &'a Path,
    /// Build folder; each target gets its own in it.
    pub build: &'a Path,
    /// The module, chosen in the sources by `cake_module`.
    pub module: &'a str,
    /// The target, chosen in the sources by `cake_sm`.
    pub target: Target,
}

/// Why a module did not compile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The compiler could not be started, or its output could not be read.
    #[error("{path}")]
    Io {
        /// The program or the file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The compiler refused the sources.
    #[error("module {module} does not compile for sm_{sm} with {compiler}:\n{log}")]
    Compiler {
        /// The module.
        module: String,
        /// Compute capability, ten times.
        sm: u32,
        /// The compiler's version.
        compiler: String,
        /// What it said.
        log: String,
    },
}

impl Job<'_> {
    /// Compiles to PTX and gives its text as the compiler wrote it.
    ///
    /// # Errors
    /// The compiler cannot be started, or it fails.
    pub fn run(&self) -> Result<String, Error> {
        let output = self.output();
        let folder = output.parent().unwrap_or(self.build);
        fs::create_dir_all(folder).map_err(|source| io_error(folder, source))?;
        let mut command = self.command();
        let result = command
            .output()
            .map_err(|source| io_error(&self.toolchain.cargo, source))?;
        if !result.status.success() {
            return Err(Error::Compiler {
                module: self.module.to_owned(),
                sm: self.target.sm,
                compiler: self.toolchain.version.clone(),
                log: String::from_utf8_lossy(&result.stderr)
                    .trim_end()
                    .to_owned(),
            });
        }
        fs::read_to_string(&output).map_err(|source| io_error(&output, source))
    }

    fn output(&self) -> PathBuf {
        self.target_folder()
            .join("raw")
            .join(format!("{}.s", self.module))
    }

    fn target_folder(&self) -> PathBuf {
        self.build.join(format!("sm_{}", self.target.sm))
    }

    /// The call of cargo.
    fn command(&self) -> Command {
        let mut command = clean(&self.toolchain.cargo);
        command
            .current_dir(self.root)
            .env("RUSTC", &self.toolchain.rustc)
            .env("CARGO_ENCODED_RUSTFLAGS", encoded(&self.rustflags()))
            .envs(profile_environment())
            .args([
                "rustc",
                "--package",
                PACKAGE,
                "--lib",
                "--release",
                "--crate-type",
                "rlib",
            ])
            .args(["-Zbuild-std=core", "--target", TRIPLE, "--target-dir"])
            .arg(self.target_folder())
            .arg("--")
            .args(selection(self.module, self.target.sm))
            .arg(joined("--emit=asm=", &self.output()));
        if self.toolchain.bootstrap {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }

    /// Flags of every crate of the build. The PTX must not tell where the checkout lies.
    fn rustflags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = manifest::FLAGS.iter().map(Into::into).collect();
        flags.extend(manifest::target_flags(self.target).map(Into::into));
        flags.push(remapped(self.root, "/cake-rmsnorm"));
        flags.push(remapped(&self.toolchain.library, "/rust/library"));
        flags
    }
}

/// The compiler arguments that choose a module and a target in the sources. The bare
/// `cake_module` says that there is a choice.
pub fn selection(module: &str, sm: u32) -> [String; 3] {
    let module_is = format!("--cfg=cake_module=\"{module}\"");
    [
        "--cfg=cake_module".to_owned(),
        module_is,
        format!("--cfg=cake_sm=\"{sm}\""),
    ]
}

/// The device build's release profile as environment variables.
pub fn profile_environment() -> impl Iterator<Item = (String, &'static str)> {
    manifest::PROFILE
        .iter()
        .map(|(key, value)| (format!("CARGO_PROFILE_RELEASE_{key}"), *value))
}

/// Compiler flags in the form that survives spaces in paths.
pub fn encoded(flags: &[OsString]) -> OsString {
    flags.join(OsString::from("\u{1f}").as_os_str())
}

/// The flag that replaces a folder in what the compiler writes.
pub fn remapped(folder: &Path, name: &str) -> OsString {
    let mut flag = joined("--remap-path-prefix=", folder);
    flag.push("=");
    flag.push(name);
    flag
}

fn joined(flag: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(flag);
    argument.push(path);
    argument
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

    fn toolchain(bootstrap: bool) -> Toolchain {
        Toolchain {
            cargo: "/tools/bin/cargo".into(),
            rustc: "/tools/bin/rustc".into(),
            library: "/tools/library".into(),
            bootstrap,
            version: "rustc 1.97.0-nightly".into(),
        }
    }

    fn command(toolchain: &Toolchain) -> Command {
        let target = Target {
            sm: 90,
            ptx_version: 80,
        };
        let (root, build) = (Path::new("/check out"), Path::new("/build"));
        Job {
            toolchain,
            root,
            build,
            module: "forward_f32",
            target,
        }
        .command()
    }

    fn environment(command: &Command, name: &str) -> Option<String> {
        let (_, value) = command.get_envs().find(|(key, _)| *key == name)?;
        value.map(|value| value.to_string_lossy().into_owned())
    }

    #[test]
    fn the_call_names_the_module_the_target_and_its_own_folder() {
        let command = command(&toolchain(false));
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        let arguments = arguments.join(" ");
        for part in [
            "-Zbuild-std=core --target nvptx64-nvidia-cuda --target-dir /build/sm_90 --",
            "--crate-type rlib",
            "--cfg=cake_module --cfg=cake_module=\"forward_f32\" --cfg=cake_sm=\"90\"",
            "--emit=asm=/build/sm_90/raw/forward_f32.s",
        ] {
            assert!(arguments.contains(part), "{part} in {arguments}");
        }
        assert_eq!(command.get_program(), "/tools/bin/cargo");
        assert_eq!(
            environment(&command, "RUSTC").as_deref(),
            Some("/tools/bin/rustc")
        );
        assert_eq!(
            environment(&command, "CARGO_PROFILE_RELEASE_PANIC").as_deref(),
            Some("abort")
        );
    }

    #[test]
    fn flags_survive_spaces_and_hide_the_checkout() {
        let flags = environment(&command(&toolchain(false)), "CARGO_ENCODED_RUSTFLAGS");
        let flags = flags.expect("flags are set");
        let flags: Vec<_> = flags.split('\u{1f}').collect();
        assert_eq!(
            flags,
            [
                "-Zmir-enable-passes=-JumpThreading",
                "-Ctarget-cpu=sm_90",
                "-Ctarget-feature=+ptx80",
                "--remap-path-prefix=/check out=/cake-rmsnorm",
                "--remap-path-prefix=/tools/library=/rust/library",
            ]
        );
    }

    #[test]
    fn only_a_release_is_told_to_accept_unstable_options() {
        let nightly = environment(&command(&toolchain(false)), "RUSTC_BOOTSTRAP");
        let release = environment(&command(&toolchain(true)), "RUSTC_BOOTSTRAP");
        assert_eq!((nightly, release.as_deref()), (None, Some("1")));
    }
}
