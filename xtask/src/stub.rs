//! `cargo xtask cuda-stub`: a stand-in for the CUDA driver that links and finds no GPU.

use crate::workspace;
use cargo_metadata::MetadataCommand;
use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Arguments of `cargo xtask cuda-stub`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder that gets lib64/libcuda.so [default: target/cuda-stub].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Functions that our backend or other crates link and that `cust_raw`'s bindings, made from
/// CUDA 11's header, lack or rename.
const NEWER: &[&str] = &[
    "cuLaunchKernelEx",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuStreamGetCtx",
    "cuStreamGetCtx_v2",
    "cuStreamGetId",
    "cuCtxGetId",
    "cuLibraryLoadData",
    "cuLibraryUnload",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuFuncGetParamInfo",
    "cuFuncLoad",
    "cuOccupancyMaxActiveClusters",
    "cuTensorMapEncodeTiled",
];

/// Why there is no stub.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `cargo metadata` failed.
    #[error("the workspace's dependencies cannot be listed")]
    Metadata(#[from] cargo_metadata::Error),
    /// The workspace does not use `cust`.
    #[error("the workspace has no dependency cust_raw, whose bindings name the driver's functions")]
    NoBindings,
    /// A file or the C compiler.
    #[error("{path}")]
    Io {
        /// Which.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The C compiler failed.
    #[error("{compiler} does not link the stub:\n{log}")]
    Compiler {
        /// The compiler.
        compiler: String,
        /// What it said.
        log: String,
    },
}

/// Runs the command.
///
/// # Errors
/// The bindings are not found, or the C compiler fails.
pub fn run(args: &Args) -> Result<(), Error> {
    let folder = args
        .out
        .clone()
        .unwrap_or_else(|| workspace::target().join("cuda-stub"));
    let names = names(&bindings()?);
    build(&folder, &names)?;
    let folder = folder.display();
    eprintln!(
        "{} driver functions in {folder}/lib64/libcuda.so. To link with it:",
        names.len()
    );
    println!("export CUDA_LIBRARY_PATH='{folder}'");
    eprintln!("To start a program with it where no driver is installed:");
    println!("export LD_LIBRARY_PATH='{folder}/lib64'${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}");
    Ok(())
}

/// The text of the driver bindings that `cust` links.
fn bindings() -> Result<String, Error> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        .features(cargo_metadata::CargoOpt::AllFeatures)
        .exec()?;
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "cust_raw");
    let package = package.ok_or(Error::NoBindings)?;
    let folder = package.manifest_path.parent().ok_or(Error::NoBindings)?;
    let path = folder.join("src/cuda.rs").into_std_path_buf();
    fs::read_to_string(&path).map_err(|source| io_error(&path, source))
}

/// The functions to define.
fn names(bindings: &str) -> BTreeSet<String> {
    let declared = bindings.split("pub fn ").skip(1).map(|rest| {
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        rest[..end].to_owned()
    });
    let declared = declared.filter(|name| name.starts_with("cu"));
    declared
        .chain(NEWER.iter().map(|name| (*name).to_owned()))
        .collect()
}

/// The stub's source: every function says CUDA_ERROR_NO_DEVICE.
fn source(names: &BTreeSet<String>) -> String {
    let mut text = String::from(
        "enum { NO_DEVICE = 100 };\n\
         int cuGetErrorName(int error, const char **name) {\n\
         \x20   *name = error == NO_DEVICE ? \"CUDA_ERROR_NO_DEVICE\" : \"CUDA_ERROR_UNKNOWN\";\n\
         \x20   return 0;\n}\n\
         int cuGetErrorString(int error, const char **text) {\n\
         \x20   *text = error == NO_DEVICE ? \"no CUDA driver (stub)\" : \"unknown (stub)\";\n\
         \x20   return 0;\n}\n",
    );
    for name in names {
        if !matches!(name.as_str(), "cuGetErrorName" | "cuGetErrorString") {
            text.push_str(&format!("int {name}(void) {{ return NO_DEVICE; }}\n"));
        }
    }
    text
}

/// Builds `lib64/libcuda.so` and, for programs to start, `lib64/libcuda.so.1`.
fn build(folder: &Path, names: &BTreeSet<String>) -> Result<(), Error> {
    let libraries = folder.join("lib64");
    fs::create_dir_all(&libraries).map_err(|source| io_error(&libraries, source))?;
    let code = folder.join("cuda.c");
    fs::write(&code, source(names)).map_err(|source| io_error(&code, source))?;
    let library = libraries.join("libcuda.so");
    let compiler = env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let output = Command::new(&compiler)
        .args([
            "-shared",
            "-fPIC",
            "-O1",
            "-fno-builtin",
            "-Wl,-soname,libcuda.so.1",
            "-o",
        ])
        .args([&library, &code])
        .output()
        .map_err(|source| io_error(Path::new(&compiler), source))?;
    if !output.status.success() {
        return Err(Error::Compiler {
            compiler: compiler.to_string_lossy().into_owned(),
            log: String::from_utf8_lossy(&output.stderr)
                .trim_end()
                .to_owned(),
        });
    }
    let named = libraries.join("libcuda.so.1");
    fs::copy(&library, &named).map_err(|source| io_error(&named, source))?;
    Ok(())
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.display().to_string(),
        source,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use object::read::elf::{FileHeader, SectionTable};
    use object::{Endianness, elf::FileHeader64};

    const BINDINGS: &str = "
        extern \"C\" {
            #[must_use]
            pub fn cuInit(Flags: ::std::os::raw::c_uint) -> CUresult;
            pub fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) -> CUresult;
            pub fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult;
            pub fn other() -> i32;
        }";

    #[test]
    fn the_bindings_functions_and_newer_ones_are_defined() {
        let names = names(BINDINGS);
        for name in [
            "cuInit",
            "cuMemAlloc_v2",
            "cuGetErrorString",
            "cuLaunchKernelEx",
        ] {
            assert!(names.contains(name), "{name}");
        }
        assert!(!names.contains("other"));
    }

    #[test]
    fn the_library_exports_them_under_the_drivers_soname() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        build(folder.path(), &names(BINDINGS)).expect("the stub links");
        let data = fs::read(folder.path().join("lib64/libcuda.so.1")).expect("the library");
        let header = FileHeader64::<Endianness>::parse(&*data).expect("an ELF file");
        let endian = header.endian().expect("an endianness");
        let sections: SectionTable<'_, _> = header.sections(endian, &*data).expect("sections");
        let symbols = sections
            .symbols(endian, &*data, object::elf::SHT_DYNSYM)
            .expect("a dynamic symbol table");
        let exported: Vec<_> = symbols
            .iter()
            .filter_map(|symbol| symbols.symbol_name(endian, symbol).ok())
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        for name in [
            "cuInit",
            "cuMemAlloc_v2",
            "cuGetErrorString",
            "cuLaunchKernelEx",
        ] {
            assert!(exported.iter().any(|exported| exported == name), "{name}");
        }
        assert!(
            data.windows(13).any(|bytes| bytes == b"libcuda.so.1\0"),
            "the soname"
        );
    }
}
