use super::*;

const TARGET: Target = Target {
    sm: 90,
    ptx_version: 80,
};
const DRIVER: &str = "librustc_driver-0123456789abcdef.so";

/// A folder with stand-ins for a code generator, its toolchain and libNVVM.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let core = folder
            .path()
            .join("nightly/lib/rustlib/src/rust/library/core/src");
        fs::create_dir_all(&core).expect("a folder");
        fs::write(core.join("lib.rs"), "").expect("a file");
        fs::create_dir_all(folder.path().join("nvvm")).expect("a folder");
        let fixture = Self { folder };
        fixture.library("nvvm/libnvvm.so.4", &[]);
        fixture.library(&format!("nightly/lib/{DRIVER}"), &[]);
        fixture.library(
            "librustc_codegen_nvvm.so",
            &["nvvm/libnvvm.so.4", &fixture.driver()],
        );
        fixture
    }

    fn driver(&self) -> String {
        format!("nightly/lib/{DRIVER}")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Links a shared library that asks for others by their file names.
    fn library(&self, name: &str, needed: &[&str]) {
        let file_name = Path::new(name)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let status = Command::new("cc")
            .args([
                "-shared",
                "-nostdlib",
                "-Wl,--no-as-needed",
                "-x",
                "c",
                "/dev/null",
            ])
            .arg(format!("-Wl,-soname,{file_name}"))
            .args(["-x", "none"])
            .args(needed.iter().map(|needed| self.at(needed)))
            .arg("-o")
            .arg(self.at(name))
            .status()
            .expect("cc runs");
        assert!(status.success(), "cc links {name}");
    }

    fn find(&self, name: &str, toolchain: &str, nvvm: &str) -> Result<Backend, Error> {
        Backend::find_in(&self.at(name), &[self.at(toolchain)], &[self.at(nvvm)])
    }
}

#[test]
fn a_code_generator_is_found_with_its_compiler_and_libnvvm() {
    let fixture = Fixture::new();
    let backend = fixture
        .find("librustc_codegen_nvvm.so", "nightly", "nvvm")
        .expect("all there");
    assert_eq!(backend.toolchain, fixture.at("nightly"));
    assert_eq!(backend.libnvvm, Some(fixture.at("nvvm")));
    assert!(
        backend.description().ends_with("in nightly"),
        "{}",
        backend.description()
    );
}

#[test]
fn a_missing_file_is_named() {
    let error = Fixture::new()
        .find("nothing.so", "nightly", "nvvm")
        .expect_err("not there");
    assert!(matches!(error, Error::Missing { .. }));
    assert!(error.to_string().contains("nothing.so"), "{error}");
}

#[test]
fn a_file_that_is_no_code_generator_is_refused() {
    let fixture = Fixture::new();
    fs::write(fixture.at("text.so"), "text").expect("a file");
    let text = fixture.find("text.so", "nightly", "nvvm");
    assert!(matches!(text, Err(Error::NoBackend { .. })), "{text:?}");
    let other = fixture
        .find("nvvm/libnvvm.so.4", "nightly", "nvvm")
        .expect_err("no driver");
    assert!(
        other
            .to_string()
            .contains("does not link to librustc_driver"),
        "{other}"
    );
}

#[test]
fn a_foreign_toolchain_is_refused_with_both_named() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.at("stable/lib")).expect("a folder");
    let error = fixture
        .find("librustc_codegen_nvvm.so", "stable", "nvvm")
        .expect_err("foreign");
    assert!(matches!(error, Error::ForeignToolchain { .. }));
    let text = error.to_string();
    assert!(text.contains(DRIVER) && text.contains("stable"), "{text}");
}

#[test]
fn a_toolchain_without_sources_is_refused() {
    let fixture = Fixture::new();
    fs::remove_dir_all(fixture.at("nightly/lib/rustlib")).expect("removed");
    let found = fixture.find("librustc_codegen_nvvm.so", "nightly", "nvvm");
    assert!(matches!(found, Err(Error::NoSources { .. })), "{found:?}");
}

#[test]
fn a_missing_libnvvm_is_named_with_the_folders_searched() {
    let fixture = Fixture::new();
    let error = fixture
        .find("librustc_codegen_nvvm.so", "nightly", "other")
        .expect_err("no nvvm");
    assert!(matches!(error, Error::NoLibNvvm { .. }));
    let text = error.to_string();
    assert!(
        text.contains("libnvvm.so.4") && text.contains("other"),
        "{text}"
    );
}

#[test]
fn the_call_keeps_the_bits_and_uses_the_code_generators_own_compiler() {
    let backend = Backend {
        path: "/rust cuda/librustc_codegen_nvvm.so".into(),
        toolchain: "/nightly".into(),
        libnvvm: Some("/nvvm".into()),
    };
    let command = backend.command(Path::new("/build"), "forward_f32", TARGET);
    let value = |name: &str| {
        let (_, value) = command.get_envs().find(|(key, _)| *key == name)?;
        value.map(|value| value.to_string_lossy().into_owned())
    };
    let flags = value("CARGO_ENCODED_RUSTFLAGS").expect("flags are set");
    for flag in [
        "-Zcodegen-backend=/rust cuda/librustc_codegen_nvvm.so",
        "-Cllvm-args=-arch=compute_90 -fma=0",
        "-Zmir-enable-passes=-JumpThreading",
        "-Cpanic=immediate-abort",
        "-Zcrate-attr=register_tool(nvvm_internal)",
    ] {
        assert!(
            flags.split('\u{1f}').any(|f| f == flag),
            "{flag} in {flags}"
        );
    }
    assert_eq!(command.get_program(), "/nightly/bin/cargo");
    assert_eq!(value("RUSTC").as_deref(), Some("/nightly/bin/rustc"));
    assert_eq!(value("CARGO_FEATURE_NO_F16_F128").as_deref(), Some("1"));
    assert_eq!(value("CARGO_PROFILE_RELEASE_PANIC"), None);
    assert!(value("LD_LIBRARY_PATH").is_some_and(|path| path.starts_with("/nvvm")));
    let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    let arguments = arguments.join(" ");
    for part in [
        "--crate-type cdylib -Zbuild-std=core,alloc --target nvptx64-nvidia-cuda",
        "--cfg=cake_module=\"forward_f32\"",
    ] {
        assert!(arguments.contains(part), "{part} in {arguments}");
    }
}
