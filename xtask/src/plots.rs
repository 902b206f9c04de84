//! `cargo xtask plots`: the pictures that documents show, from the files in `docs/measurements/`
//! and from the plans of the program, each for light and for dark pages.

mod accuracy;
mod badges;
mod gated;
mod picture;
mod routes;
mod speed;
#[cfg(test)]
mod tests;

use crate::tables::{self, data::Measurements};
use crate::workspace;
use picture::{DARK, LIGHT, Picture};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Arguments of `cargo xtask plots`.
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail when a picture is not what measurements and plans give.
    #[arg(long)]
    check: bool,
}

/// Why the pictures were not drawn, or are stale.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A measurement cannot be used.
    #[error(transparent)]
    Measurements(#[from] tables::Error),
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A table of a measurement is not in its format.
    #[error("{file}: {message}")]
    Table {
        /// The file.
        file: String,
        /// Where and why.
        message: String,
    },
    /// The program does not print its plans.
    #[error("`cake-rmsnorm routes`: {0}")]
    Plans(String),
    /// A picture cannot be drawn.
    #[error("{name}: {message}")]
    Drawing {
        /// The picture.
        name: &'static str,
        /// Why.
        message: String,
    },
    /// Pictures show something else than measurements and plans give.
    #[error("stale: {}; run `cargo xtask plots`", .0.join(", "))]
    Stale(Vec<String>),
}

/// Pictures by name.
type Pictures = BTreeMap<&'static str, Picture>;

const FOLDER: &str = "docs/plots";

/// Runs the command.
///
/// # Errors
/// A measurement or the program's plans cannot be read, or (`--check`) a picture is stale.
pub fn run(args: &Args) -> Result<(), Error> {
    let root = workspace::root();
    let measurements = root.join("docs/measurements");
    let mut pictures = measured(&measurements)?;
    pictures.extend(routes::draw(root)?);
    let mut files = drawn(&pictures)?;
    files.extend(badges::draw(
        root,
        &Measurements::read(&measurements)?.checks,
    )?);
    let stale = update(&root.join(FOLDER), &files, args.check)?;
    if args.check && !stale.is_empty() {
        return Err(Error::Stale(stale));
    }
    for file in &stale {
        println!("{FOLDER}/{file}: written");
    }
    if stale.is_empty() {
        println!("{} files: as measurements and plans say", files.len());
    }
    Ok(())
}

/// The pictures of the newest measurements.
fn measured(folder: &Path) -> Result<Pictures, Error> {
    let measurements = Measurements::read(folder)?;
    let mut pictures = Pictures::new();
    if let Some(newest) = tables::markdown::newest(&measurements.peers).first() {
        pictures.extend(speed::draw(newest));
        pictures.extend(accuracy::draw(newest));
    }
    pictures.extend(gated::draw(folder)?);
    Ok(pictures)
}

/// The pictures for light and dark pages, by file.
fn drawn(pictures: &Pictures) -> Result<BTreeMap<String, String>, Error> {
    let mut files = BTreeMap::new();
    for (&name, picture) in pictures {
        for theme in [&LIGHT, &DARK] {
            let svg = picture.svg(theme).map_err(|error| Error::Drawing {
                name,
                message: error.to_string(),
            })?;
            files.insert(format!("{name}-{}.svg", theme.name), svg);
        }
    }
    Ok(files)
}

/// Writes the files, or with `check` nothing; those that differed.
fn update(
    folder: &Path,
    files: &BTreeMap<String, String>,
    check: bool,
) -> Result<Vec<String>, Error> {
    let mut stale = Vec::new();
    for (file, svg) in files {
        let path = folder.join(file);
        if fs::read_to_string(&path).ok().as_ref() != Some(svg) {
            stale.push(file.clone());
            if !check {
                write(folder, &path, svg)?;
            }
        }
    }
    for file in strays(folder, &files.keys().collect())? {
        if !check {
            let path = folder.join(&file);
            fs::remove_file(&path).map_err(|source| Error::Io { path, source })?;
        }
        stale.push(file);
    }
    Ok(stale)
}

fn write(folder: &Path, path: &Path, svg: &str) -> Result<(), Error> {
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, svg));
    written.map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

/// Pictures that nothing draws any more.
fn strays(folder: &Path, files: &BTreeSet<&String>) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            let path = folder.to_owned();
            return Err(Error::Io { path, source });
        }
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    Ok(names.filter(|name| !files.contains(name)).collect())
}
