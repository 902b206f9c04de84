//! `cargo xtask tables`: the tables that documents show, from the files in `docs/measurements/`,
//! so that no figure is typed by hand.

pub mod data;
mod facts;
mod full;
pub mod markdown;
mod summary;
#[cfg(test)]
mod tests;

use crate::workspace;
use data::Measurements;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Arguments of `cargo xtask tables`.
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail when a generated region is not what the measurements give.
    #[arg(long)]
    check: bool,
}

/// Why the tables were not written, or are stale.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A measurement is not in its format.
    #[error("{}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A measurement is well-formed and still cannot be used.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// A document has not exactly one region for the tables.
    #[error("{}: needs one region between `{BEGIN}` and `{END}`", .0.display())]
    Region(PathBuf),
    /// Documents show other figures than the measurements give.
    #[error("stale: {}; run `cargo xtask tables`", .0.join(", "))]
    Stale(Vec<String>),
}

const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";

/// Gives the text of a region.
type Render = fn(&Measurements) -> String;

/// Documents with a region, and what stands in it.
const DOCUMENTS: [(&str, Render); 3] = [
    ("README.md", summary::render),
    ("docs/measurements/README.md", full::render),
    ("docs/measured-facts.md", facts::render),
];

/// Runs the command.
///
/// # Errors
/// A measurement or a document cannot be read, or (`--check`) a region is stale.
pub fn run(args: &Args) -> Result<(), Error> {
    let stale = update(workspace::root(), args.check)?;
    if args.check && !stale.is_empty() {
        return Err(Error::Stale(stale));
    }
    for document in &stale {
        println!("{document}: written");
    }
    if stale.is_empty() {
        println!("{} documents: as the measurements say", DOCUMENTS.len());
    }
    Ok(())
}

/// Writes the regions anew, or with `check` nothing; the documents that differed.
fn update(root: &Path, check: bool) -> Result<Vec<String>, Error> {
    let measurements = Measurements::read(&root.join("docs/measurements"))?;
    let mut stale = Vec::new();
    for (document, render) in DOCUMENTS {
        let path = root.join(document);
        let io = |source| Error::Io {
            path: path.clone(),
            source,
        };
        let old = fs::read_to_string(&path).map_err(io)?;
        let new =
            replace(&old, &render(&measurements)).ok_or_else(|| Error::Region(path.clone()))?;
        if new != old {
            stale.push(document.to_owned());
            if !check {
                fs::write(&path, new).map_err(io)?;
            }
        }
    }
    Ok(stale)
}

/// `text` with `content` in its region; `None` where it has not exactly one.
fn replace(text: &str, content: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (region, after) = rest.split_once(END)?;
    let again = [region, after]
        .iter()
        .any(|part| part.contains(BEGIN) || part.contains(END));
    (!again).then(|| format!("{before}{BEGIN}\n{}\n{END}{after}", content.trim_end()))
}
