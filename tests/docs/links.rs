//! Links between the documents, as the repository shows them. (book/src/html.rs follows those of
//! the book.)

use crate::{documents, root};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// What a page links to, and what it has that can be linked to.
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn new(text: &str) -> Self {
        let (mut links, mut anchors) = (Vec::new(), BTreeSet::new());
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    links.push(dest_url.into_string());
                }
                Event::Html(html) | Event::InlineHtml(html) => {
                    links.extend(sources(&html).map(str::to_owned));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        *heading += &text;
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    // A name that was given is given again with a number.
                    let mut numbered = (1..).map(|n| format!("{name}-{n}"));
                    let mut free = name.clone();
                    while !anchors.insert(free.clone()) {
                        free = numbered.next().expect("another number");
                    }
                }
                _ => {}
            }
        }
        Self { links, anchors }
    }
}

/// The files that HTML in a page shows.
fn sources(html: &str) -> impl Iterator<Item = &str> {
    let parts = [" src=\"", " srcset=\""].into_iter();
    let parts = parts.flat_map(|attribute| html.split(attribute).skip(1));
    parts.filter_map(|part| part.split('"').next())
}

/// A heading's anchor: its letters and digits, with hyphens for spaces.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let lower = heading.trim().to_lowercase();
    lower
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::CurDir => {}
            part => path.push(part),
        }
        path
    })
}

/// Links of `page` that lead nowhere, among all of its links within the repository.
fn broken<'a>(
    pages: &'a BTreeMap<PathBuf, Page>,
    page: &'a Path,
) -> impl Iterator<Item = (&'a str, bool)> {
    let folder = page.parent().unwrap_or(Path::new(""));
    let inside = |link: &&String| !link.contains("://");
    pages[page].links.iter().filter(inside).map(move |link| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => page.to_owned(),
            file => normal(&folder.join(file)),
        };
        let has_anchor = |page: &Page| page.anchors.contains(anchor);
        let exists = pages.contains_key(&target) || root().join(&target).exists();
        let found = exists && (anchor.is_empty() || pages.get(&target).is_some_and(has_anchor));
        (link.as_str(), !found)
    })
}

fn read_pages() -> BTreeMap<PathBuf, Page> {
    let pages = documents().into_iter();
    pages.map(|(path, text)| (path, Page::new(&text))).collect()
}

#[test]
fn links_lead_somewhere() {
    let pages = read_pages();
    let mut count = 0;
    for page in pages.keys() {
        for (link, broken) in broken(&pages, page) {
            assert!(!broken, "{}: {link} leads nowhere", page.display());
            count += 1;
        }
    }
    assert!(count > 60, "only {count} links found");
}

#[test]
fn broken_links_are_noticed() {
    let text = "# One `two`, three\n\n[a](#one-two-three) [b](#two) [c](README.md) [d](none.md)\n\
        <img src=\"none.svg\">\n\n[e](docs/../README.md#licence) [f](README.md#license)\n";
    let mut pages = read_pages();
    let page = Path::new("page.md");
    pages.insert(page.to_owned(), Page::new(text));
    let broken: Vec<_> = broken(&pages, page)
        .filter_map(|(link, broken)| broken.then_some(link))
        .collect();
    assert_eq!(broken, ["#two", "none.md", "none.svg", "README.md#license"]);
}

#[test]
fn every_page_is_in_the_book() {
    let pages = read_pages();
    let summary = Path::new("docs/SUMMARY.md");
    let listed: BTreeSet<_> = pages[summary]
        .links
        .iter()
        .map(|link| Path::new("docs").join(link))
        .collect();
    for page in pages.keys().filter(|page| page.starts_with("docs")) {
        assert!(
            page == summary || listed.contains(page),
            "docs/SUMMARY.md does not list {}",
            page.display()
        );
    }
}
