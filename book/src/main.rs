//! Builds the book, `target/book`, from the README and `docs/`, and checks that its links lead
//! somewhere. `cargo run --manifest-path book/Cargo.toml`

mod html;
mod markdown;

use anyhow::{Context, Result, bail};
use mdbook_driver::MDBook;
use mdbook_driver::book::{BookItem, Chapter};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The page that is not in `docs/`, and its place in the book.
const FIRST: (&str, &str) = ("README.md", "index.md");

fn main() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("the folder above the book's")?;
    let mut book = MDBook::load(here)?;
    let readme = fs::read_to_string(root.join(FIRST.0)).context(FIRST.0)?;
    let mut first = Chapter::new(title(&readme)?, readme.clone(), FIRST.1, Vec::new());
    first.source_path = None; // not in docs/
    book.book.items.insert(0, BookItem::Chapter(first));

    let pages = pages(&book);
    let repository = repository(root)?;
    book.book.for_each_chapter_mut(|chapter| {
        let Some(path) = &chapter.path else { return };
        let Some((source, _)) = pages.iter().find(|(_, place)| *place == path) else {
            return;
        };
        let place = markdown::Place {
            root,
            source,
            place: path,
            pages: &pages,
            repository: &repository,
        };
        chapter.content = place.rewrite(&chapter.content);
    });
    book.build()?;

    let output = root.join("target/book");
    let links = html::check(&output)?;
    if !links.broken.is_empty() {
        bail!("links that lead nowhere:\n{}", links.broken.join("\n"));
    }
    println!(
        "{} pages, {} links within the book: {}",
        links.pages,
        links.followed,
        output.join("index.html").display()
    );
    Ok(())
}

/// Where the sources of pages, relative to the repository, stand in the book.
fn pages(book: &MDBook) -> BTreeMap<PathBuf, PathBuf> {
    let mut pages = BTreeMap::new();
    for item in book.iter() {
        let BookItem::Chapter(chapter) = item else {
            continue;
        };
        match (&chapter.source_path, &chapter.path) {
            (Some(source), Some(place)) => {
                pages.insert(Path::new("docs").join(source), place.clone());
            }
            (None, Some(place)) => {
                pages.insert(FIRST.0.into(), place.clone());
            }
            _ => {}
        }
    }
    pages
}

fn title(text: &str) -> Result<&str> {
    let first = text.lines().next().and_then(|line| line.strip_prefix("# "));
    first.context("the README starts with its title")
}

/// The address that `Cargo.toml` names.
fn repository(root: &Path) -> Result<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("repository = \""));
    let address = line.and_then(|line| line.strip_suffix('"'));
    Ok(address.context("a repository in Cargo.toml")?.to_owned())
}
