//! A copy of the checkout to break things in, with a build folder of its own.

use super::{Error, data::Breakage};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The copy.
pub struct Scratch {
    root: PathBuf,
    /// Its files.
    pub tree: PathBuf,
    /// Its build folder.
    pub target: PathBuf,
}

impl Scratch {
    /// Brings the copy in `folder` to what the checkout at `root` holds. Files that are the same stay
    /// as they are, so that what was built of them need not be built again.
    ///
    /// # Errors
    /// A file cannot be read or written, or git does not list them.
    pub fn new(root: &Path, folder: &Path) -> Result<Self, Error> {
        let scratch = Self {
            root: root.to_owned(),
            tree: folder.join("tree"),
            target: folder.join("target"),
        };
        let names = scratch.names()?;
        for old in files(&scratch.tree)? {
            let name = old.strip_prefix(&scratch.tree).unwrap_or(&old);
            if !names.contains(name) {
                fs::remove_file(&old).map_err(Error::io(old.display()))?;
            }
        }
        for name in &names {
            scratch.copy(name)?;
        }
        Ok(scratch)
    }

    /// Files that git has or would add.
    fn names(&self) -> Result<BTreeSet<PathBuf>, Error> {
        let list = Command::new("git")
            .current_dir(&self.root)
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .output()
            .map_err(Error::io("git ls-files"))?;
        let text = String::from_utf8_lossy(&list.stdout);
        let names = text.split('\0').filter(|name| !name.is_empty());
        let there = names.filter(|name| self.root.join(name).is_file());
        Ok(there.map(PathBuf::from).collect())
    }

    fn copy(&self, name: &Path) -> Result<(), Error> {
        let (from, to) = (self.root.join(name), self.tree.join(name));
        let new = fs::read(&from).map_err(Error::io(from.display()))?;
        if fs::read(&to).is_ok_and(|old| old == new) {
            return Ok(());
        }
        let folder = to.parent().unwrap_or(&to);
        fs::create_dir_all(folder).map_err(Error::io(folder.display()))?;
        // With its permissions, and the time of now: what cargo built of it is old.
        let written = fs::copy(&from, &to).and_then(|_| fs::write(&to, new));
        written.map_err(Error::io(to.display()))
    }

    /// Breaks the copy; returns what mends it.
    ///
    /// # Errors
    /// The entry does not fit, or the file cannot be written.
    pub fn apply(&self, entry: &Breakage) -> Result<Whole, Error> {
        let path = self.tree.join(&entry.file);
        let text = fs::read_to_string(&path).map_err(Error::io(&entry.file))?;
        fs::write(&path, entry.edit(&text)?).map_err(Error::io(&entry.file))?;
        Ok(Whole { path, text })
    }
}

/// A file before it was broken.
#[must_use = "the copy stays broken"]
pub struct Whole {
    path: PathBuf,
    text: String,
}

impl Whole {
    /// Puts it back.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn restore(self) -> Result<(), Error> {
        fs::write(&self.path, self.text).map_err(Error::io(self.path.display()))
    }
}

/// All files below a folder, which need not be there, but for those that builds left.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    if !folder.is_dir() {
        return Ok(found);
    }
    for entry in fs::read_dir(folder).map_err(Error::io(folder.display()))? {
        let path = entry.map_err(Error::io(folder.display()))?.path();
        if path.is_dir() && !path.is_symlink() {
            if !path.ends_with("target") {
                found.extend(files(&path)?);
            }
        } else {
            found.push(path);
        }
    }
    Ok(found)
}
