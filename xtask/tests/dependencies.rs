//! Licences and sources of every dependency, by the rules of `deny.toml`, for which `cargo deny` need
//! not be there. What our own crates say of themselves.

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand, Package};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the checkout")
}

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml"));
    command.features(CargoOpt::AllFeatures);
    command.exec().expect("the workspace's dependencies")
}

/// The licences that `deny.toml` allows.
fn allowed() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let rules: toml::Table = text.parse().expect("TOML");
    let allowed = rules["licenses"]["allow"].as_array().expect("a list");
    let names = allowed.iter().filter_map(|name| name.as_str());
    names.map(str::to_owned).collect()
}

/// Whether an expression has a choice of allowed licences alone.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Older crates write a slash.
    let expression = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX);
    expression.is_ok_and(|expression| {
        expression.evaluate(|requirement| {
            requirement
                .license
                .id()
                .is_some_and(|id| allowed.contains(id.name))
                && requirement.addition.is_none()
        })
    })
}

#[test]
fn licences_of_dependencies_are_allowed() {
    let allowed = allowed();
    let metadata = metadata();
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("none");
        let Package { name, version, .. } = package;
        assert!(
            is_allowed(licence, &allowed),
            "{name} {version}: {licence} is not in deny.toml"
        );
    }
    assert!(metadata.packages.len() > 100, "dependencies were listed");
}

#[test]
fn other_licences_are_noticed() {
    let allowed = allowed();
    for good in [
        "MIT OR GPL-3.0-only",
        "MIT/Apache-2.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "none", ""] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn dependencies_come_from_the_registry_alone() {
    for package in metadata().packages {
        let Some(source) = package.source else {
            continue;
        };
        assert!(source.is_crates_io(), "{}: {source}", package.name);
    }
}

#[test]
fn our_crates_say_what_they_are() {
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        let name = &package.name;
        assert_eq!(
            package.license.as_deref(),
            Some("MIT OR Apache-2.0"),
            "{name}"
        );
        assert!(package.description.is_some(), "{name} has no description");
        let version = package.rust_version.as_ref().expect("an MSRV");
        assert_eq!((version.major, version.minor), (1, 90), "{name}");
        if package.publish.as_ref().is_none_or(|to| !to.is_empty()) {
            assert!(package.repository.is_some(), "{name} has no repository");
            let wild = package
                .dependencies
                .iter()
                .find(|it| it.req.to_string() == "*");
            let wild = wild.map(|it| &it.name);
            assert!(wild.is_none(), "{name}: {wild:?} has no version");
        }
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(root().join(licence).is_file(), "{licence}");
    }
}
