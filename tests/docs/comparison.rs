//! What docs/comparison.md says about other projects names its source.

use crate::documents;
use std::path::Path;

const PAGE: &str = "docs/comparison.md";

/// Rows of tables, as the cells between their bars.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

/// Keys between `][` and `]`.
fn references(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("][").skip(1);
    parts.filter_map(|part| part.split(']').next())
}

#[test]
fn statements_about_others_name_their_source() {
    let text = &documents()[Path::new(PAGE)];
    let mut count = 0;
    for row in rows(text) {
        let [project, statement] = row[..] else {
            continue;
        };
        let heading = project.is_empty() || project.starts_with("---");
        if heading || project == "cake-rmsnorm" {
            continue;
        }
        let sourced = statement.contains("](") || statement.contains("][");
        assert!(
            sourced || statement == "not found",
            "{project}: {statement:?} names no source"
        );
        count += 1;
    }
    assert!(count > 70, "only {count} statements found");
    for key in references(text) {
        let definition = format!("\n[{key}]: https://");
        assert!(text.contains(&definition), "[{key}] is no address");
    }
}

#[test]
fn every_feature_is_said_of_everyone() {
    let text = &documents()[Path::new(PAGE)];
    let names = |part: &str| {
        let names = rows(part).map(|row| row[0].to_owned());
        let named = names.filter(|name| !name.is_empty() && !name.starts_with("---"));
        named.collect::<Vec<_>>()
    };
    let mut parts = text.split("\n## ");
    let mut everyone = vec!["cake-rmsnorm".to_owned()];
    everyone.extend(names(parts.next().expect("the others")));
    assert_eq!(everyone.len(), 7);
    for part in parts {
        let title = part.lines().next().unwrap_or_default();
        assert_eq!(names(part), everyone, "{title}");
    }
}
