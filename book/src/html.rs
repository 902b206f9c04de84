//! The finished book: whether its links lead somewhere.

use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What was found.
#[derive(Default)]
pub struct Links {
    pub pages: usize,
    /// Links within the book.
    pub followed: usize,
    /// Page and link.
    pub broken: Vec<String>,
}

/// Follows every `href` and `src` of every page to a file of the book, and to an element of it.
pub fn check(book: &Path) -> Result<Links> {
    let mut texts = BTreeMap::new();
    read(book, &mut texts)?;
    let ids: BTreeMap<_, BTreeSet<&str>> = texts
        .iter()
        .map(|(path, text)| (path, attributes(text, "id").collect()))
        .collect();
    let mut links = Links {
        pages: texts.len(),
        ..Links::default()
    };
    for (path, text) in &texts {
        // Its links start from wherever the server found nothing.
        if path.ends_with("404.html") {
            continue;
        }
        let folder = path.parent().unwrap_or(book);
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            if link.contains("://") || link.starts_with("data:") {
                continue;
            }
            links.followed += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => folder.join(file),
            };
            let found = target.canonicalize().is_ok_and(|target| {
                let has = |ids: &BTreeSet<&str>| ids.contains(anchor);
                target.is_file() && (anchor.is_empty() || ids.get(&target).is_some_and(has))
            });
            if !found {
                links.broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    Ok(links)
}

/// All pages below a folder.
fn read(folder: &Path, texts: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path().canonicalize()?;
        if path.is_dir() {
            read(&path, texts)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let text = fs::read_to_string(&path)?;
            texts.insert(path, text);
        }
    }
    Ok(())
}

/// Values of an attribute, as mdBook writes it.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let parts: Vec<_> = html.split(&*start).skip(1).collect();
    parts
        .into_iter()
        .map(|part| part.split('"').next().unwrap_or(""))
}
