//! `cargo xtask api`: what the library offers, as text, so that a change that breaks callers is seen.

use crate::manifest::TOOLCHAIN;
use crate::workspace;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Arguments of `cargo xtask api`.
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail when something that the committed list has is gone or has changed.
    #[arg(long)]
    check: bool,
}

/// Why there is no list, or what broke.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written, or a program not be run.
    #[error("{what}")]
    Io {
        /// Which.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// rustdoc failed.
    #[error(
        "rustdoc of {TOOLCHAIN} failed; install it with `rustup toolchain install {TOOLCHAIN} \
         --profile minimal -c rust-src`"
    )]
    Rustdoc,
    /// rustdoc's output cannot be read.
    #[error("rustdoc's description of the library")]
    Json(#[from] public_api::Error),
    /// Something that was public is not any more.
    #[error(
        "gone or changed since {LIST}, which breaks callers:\n{}\nIf that is meant, run `cargo \
         xtask api`, and say so in CHANGELOG.md",
        .0.join("\n")
    )]
    Broken(Vec<String>),
}

const LIST: &str = "docs/public-api.txt";

/// Runs the command.
///
/// # Errors
/// The list cannot be made, or (`--check`) an item of the committed one is gone.
pub fn run(args: &Args) -> Result<(), Error> {
    let found = items()?;
    let path = workspace::root().join(LIST);
    let io = |source| Error::Io {
        what: path.display().to_string(),
        source,
    };
    if !args.check {
        fs::write(&path, found.join("\n") + "\n").map_err(io)?;
        println!("{LIST}: {} items written", found.len());
        return Ok(());
    }
    let committed = fs::read_to_string(&path).map_err(io)?;
    let (gone, new) = compare(&committed, &found);
    if !gone.is_empty() {
        return Err(Error::Broken(gone));
    }
    println!("{LIST}: nothing is gone; {} items are new", new.len());
    Ok(())
}

/// Items of the committed list that are gone, and found ones that it lacks.
fn compare(committed: &str, found: &[String]) -> (Vec<String>, Vec<String>) {
    let committed: BTreeSet<_> = committed.lines().collect();
    let found: BTreeSet<_> = found.iter().map(String::as_str).collect();
    let lines = |from: &BTreeSet<&str>, without: &BTreeSet<&str>| {
        let lines = from.difference(without);
        lines.map(|line| (*line).to_owned()).collect()
    };
    (lines(&committed, &found), lines(&found, &committed))
}

/// The library's public items, a line each, without what every type implements.
fn items() -> Result<Vec<String>, Error> {
    let api = public_api::Builder::from_rustdoc_json(rustdoc()?)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api.items().map(ToString::to_string).collect())
}

/// The description that rustdoc makes; its format is that of the pinned nightly.
fn rustdoc() -> Result<PathBuf, Error> {
    let folder = workspace::target().join("api");
    let status = cargo(&folder).status().map_err(|source| Error::Io {
        what: "cargo".to_owned(),
        source,
    })?;
    if !status.success() {
        return Err(Error::Rustdoc);
    }
    Ok(folder.join("doc/cake_rmsnorm.json"))
}

fn cargo(folder: &Path) -> Command {
    let mut command = Command::new("rustup");
    command
        .current_dir(workspace::root())
        .args(["run", TOOLCHAIN, "cargo", "rustdoc", "--quiet", "--lib"])
        .args(["--package", "cake-rmsnorm", "--target-dir"])
        .arg(folder)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        // Those of the cargo that runs this.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC")
        .env_remove("RUSTDOC")
        .env_remove("CARGO");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_or_changed_breaks_and_what_is_new_does_not() {
        let committed = "pub fn a()\npub fn b(x: u32)\npub struct C\n";
        let found = [
            "pub fn a()",
            "pub fn b(x: u64)",
            "pub struct D",
            "pub struct C",
        ];
        let (gone, new) = compare(committed, &found.map(str::to_owned));
        assert_eq!(gone, ["pub fn b(x: u32)"]);
        assert_eq!(new, ["pub fn b(x: u64)", "pub struct D"]);
    }
}
