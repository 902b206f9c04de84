//! Links and pictures of a page, as they must be in the book.

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Where a page comes from and goes to.
pub struct Place<'a> {
    /// The checkout.
    pub root: &'a Path,
    /// The page's source, relative to the checkout.
    pub source: &'a Path,
    /// The page in the book.
    pub place: &'a Path,
    /// Places of all sources.
    pub pages: &'a BTreeMap<PathBuf, PathBuf>,
    /// Where files that are not in the book can be read.
    pub repository: &'a str,
}

impl Place<'_> {
    /// The page with its links as they must be in the book.
    pub fn rewrite(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut done = 0;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let (Event::Start(Tag::Link {
                link_type: LinkType::Inline,
                dest_url,
                ..
            })
            | Event::Start(Tag::Image {
                link_type: LinkType::Inline,
                dest_url,
                ..
            })) = event
            else {
                continue;
            };
            // An inline link ends with its address.
            let end = format!("({dest_url})");
            if text[range.clone()].ends_with(&end) {
                let start = range.end - end.len();
                parts.push(text[done..start].to_owned());
                parts.push(format!("({})", self.link(&dest_url)));
                done = range.end;
            }
        }
        parts.push(text[done..].to_owned());
        self.pictures(&parts.concat())
    }

    /// Both versions of each `<picture>`, for the page's theme to choose from.
    fn pictures(&self, text: &str) -> String {
        let mut rewritten = String::new();
        let mut rest = text;
        while let Some((before, picture)) = rest.split_once("<picture>") {
            let Some((picture, after)) = picture.split_once("</picture>") else {
                break;
            };
            let image = |class, name| {
                let [source, alt] = [name, "alt"].map(|name| attribute(picture, name));
                let source = self.link(source);
                format!("<img class=\"{class}\" src=\"{source}\" alt=\"{alt}\">")
            };
            rewritten += before;
            rewritten += &image("on-light", "src");
            rewritten += &image("on-dark", "srcset");
            rest = after;
        }
        rewritten + rest
    }

    /// A link of the page, as it must be in the book.
    fn link(&self, link: &str) -> String {
        let (path, anchor) = match link.split_once('#') {
            Some((path, anchor)) => (path, format!("#{anchor}")),
            None => (link, String::new()),
        };
        if path.is_empty() || path.contains("://") {
            return link.to_owned();
        }
        let folder = self.source.parent().unwrap_or(Path::new(""));
        let target = normal(&folder.join(path));
        let inside = match self.pages.get(&target) {
            Some(page) => Some(page.as_path()),
            None => target.strip_prefix("docs").ok(),
        };
        match inside {
            Some(inside) => self.relative(inside) + &anchor,
            None => {
                let kind = match self.root.join(&target).is_dir() {
                    true => "tree",
                    false => "blob",
                };
                format!(
                    "{}/{kind}/HEAD/{}{anchor}",
                    self.repository,
                    slashes(&target)
                )
            }
        }
    }

    /// The way from this page to another file of the book.
    fn relative(&self, to: &Path) -> String {
        let up = self.place.components().count() - 1;
        // mdBook renders README.md as index.html.
        let to = match to.file_name().is_some_and(|name| name == "README.md") {
            true => to.with_file_name("index.md"),
            false => to.to_owned(),
        };
        "../".repeat(up) + &slashes(&to)
    }
}

/// The value of an attribute, or nothing.
fn attribute<'a>(html: &'a str, name: &str) -> &'a str {
    let start = format!(" {name}=\"");
    let value = html.split_once(&start).map_or("", |(_, value)| value);
    value.split('"').next().unwrap_or("")
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

fn slashes(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}
