//! What runs a test: a test binary of cargo's, or pytest.

use super::Error;

/// A test binary, or Python's tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// `cargo test` with these arguments.
    Cargo(Vec<String>),
    /// `pytest`, with the C interface's library.
    Python,
}

/// Folders of crates, their names, and what holds tests beside `tests/`.
const CRATES: [(&str, &str, &str); 6] = [
    ("kernels-gpu/", "cake-rmsnorm-kernels", "--lib"),
    ("simt/", "cake-rmsnorm-simt", "--lib"),
    ("capi/", "cake-rmsnorm-capi", "--lib"),
    ("xtask/", "xtask", "--bins"),
    ("host/cli/", "cake-rmsnorm", "--bins"),
    ("", "cake-rmsnorm", "--lib"),
];

impl Suite {
    /// What runs `test`, named by its file and function.
    ///
    /// # Errors
    /// It has no such name.
    pub fn of(test: &str) -> Result<Self, Error> {
        let (file, _) = split(test)?;
        if file.starts_with("python/") {
            return Ok(Self::Python);
        }
        let (mut args, within, unit) = match file.strip_prefix("candle/") {
            Some(within) => (words("--manifest-path candle/Cargo.toml"), within, "--lib"),
            None => {
                let of = CRATES.iter().find(|(folder, ..)| file.starts_with(folder));
                let (folder, package, unit) = of.unwrap_or(&CRATES[CRATES.len() - 1]);
                let args = match *package {
                    // With what its tests of a driver need.
                    "cake-rmsnorm" => words("--package cake-rmsnorm --features cudarc"),
                    package => words(&format!("--package {package}")),
                };
                (args, &file[folder.len()..], *unit)
            }
        };
        match within.strip_prefix("tests/") {
            Some(within) => {
                let target = within.split(['/', '.']).next().unwrap_or(within);
                args.extend(words(&format!("--test {target}")));
            }
            None => args.push(unit.to_owned()),
        }
        Ok(Self::Cargo(args))
    }
}

/// How many crates are built anew when a file changes: few, or more.
pub fn depth(file: &str) -> usize {
    let deep = ["kernels-gpu/", "simt/"];
    let found = deep.iter().position(|folder| file.starts_with(folder));
    found.map_or(0, |place| 1 + place)
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// File and function.
pub fn split(test: &str) -> Result<(&str, &str), Error> {
    let wrong = || Error::Entry(format!("{test}: no file and function"));
    test.split_once("::").ok_or_else(wrong)
}

/// The path of the module that a test file is, within its binary.
pub fn module(file: &str) -> String {
    let within = CRATES[..5]
        .iter()
        .find_map(|(folder, ..)| file.strip_prefix(folder).filter(|_| *folder != "host/cli/"))
        .or_else(|| file.strip_prefix("candle/"))
        .or_else(|| file.strip_prefix("host/"))
        .unwrap_or(file);
    let (integration, within) = match within.strip_prefix("tests/") {
        Some(rest) => (true, rest),
        None => (false, within.strip_prefix("src/").unwrap_or(within)),
    };
    let path = within.trim_end_matches(".rs");
    let path = path.split('/').skip(usize::from(integration));
    let path: Vec<_> = path
        .filter(|part| !matches!(*part, "mod" | "main" | "lib"))
        .collect();
    path.join("::")
}
