//! Licences, sources and versions of every dependency, by the rules of `deny.toml`, for which `cargo
//! deny` need not be there; what the library needs, and with which features; that building it fetches
//! nothing. What our own crates say of themselves.

use cargo_metadata::semver::{Version, VersionReq};
use cargo_metadata::{CargoOpt, Metadata, MetadataCommand, Package, TargetKind};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

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

fn rules() -> toml::Table {
    let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    text.parse().expect("TOML")
}

/// The licences that `deny.toml` allows.
fn allowed() -> BTreeSet<String> {
    let rules = rules();
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

/// The versions beside another that `deny.toml` allows.
fn allowed_duplicates() -> Vec<(String, VersionReq)> {
    let rules = rules();
    let skipped = rules["bans"]["skip"].as_array().expect("a list").iter();
    let names = skipped.map(|entry| entry["crate"].as_str().expect("a crate"));
    names
        .map(|name| {
            let (name, version) = name.split_once('@').expect("a version");
            let version = format!("={version}").parse().expect("a version");
            (name.to_owned(), version)
        })
        .collect()
}

/// What is wrong with crates that are there in several versions.
fn duplicates(
    found: &BTreeMap<&str, BTreeSet<&Version>>,
    allowed: &[(String, VersionReq)],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_allowed = |name: &str, version: &Version| {
        let mut allowed = allowed.iter().filter(|entry| entry.0 == name);
        allowed.any(|(_, accepted)| accepted.matches(version))
    };
    for (name, versions) in found.iter().filter(|(_, versions)| versions.len() > 1) {
        let left = versions.iter().filter(|it| !is_allowed(name, it));
        let left: Vec<String> = left.map(ToString::to_string).collect();
        if left.len() > 1 {
            wrong.push(format!("{name} has versions {left:?}"));
        }
    }
    for (name, accepted) in allowed {
        let versions = found.get(name.as_str()).filter(|it| it.len() > 1);
        if !versions.is_some_and(|it| it.iter().any(|version| accepted.matches(version))) {
            wrong.push(format!("{name} {accepted} is there once, or not at all"));
        }
    }
    wrong
}

#[test]
fn crates_in_two_versions_are_listed() {
    let metadata = metadata();
    let mut found = BTreeMap::<&str, BTreeSet<&Version>>::new();
    for package in &metadata.packages {
        let versions = found.entry(package.name.as_str()).or_default();
        versions.insert(&package.version);
    }
    let allowed = allowed_duplicates();
    assert_eq!(
        duplicates(&found, &allowed),
        [""; 0],
        "deny.toml lists others"
    );
    // A third version of one that has two, a second of another.
    let other = Version::new(99, 0, 0);
    found.get_mut("syn").expect("a dependency").insert(&other);
    found.get_mut("half").expect("a dependency").insert(&other);
    assert_eq!(duplicates(&found, &allowed).len(), 2);
}

/// What the library builds, in the default features, on this host: a line for each crate, with its
/// features.
#[test]
fn the_library_needs_what_is_listed() {
    const LIST: &str = "docs/dependencies.txt";
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--offline", "--package", "cake-rmsnorm"])
        .args(["--edges", "normal,build", "--prefix", "none"])
        .args([
            "--target",
            "x86_64-unknown-linux-gnu",
            "--format",
            "{lib}|{p}|{f}",
        ])
        .output()
        .expect("cargo tree");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = |line: &str| {
        let mut parts = line.trim_end_matches(" (*)").split('|').skip(1);
        let name = parts.next()?.split(' ').next()?;
        let features = parts.next().unwrap_or_default().replace(',', " ");
        Some(format!("{name}: {features}").trim_end().to_owned())
    };
    let found: BTreeSet<String> = text.lines().filter_map(line).collect();
    let committed = fs::read_to_string(root().join(LIST)).expect(LIST);
    let committed: BTreeSet<String> = committed
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| -> Vec<String> {
        a.difference(b).cloned().collect()
    };
    let (new, gone) = (only(&found, &committed), only(&committed, &found));
    assert!(
        new.is_empty() && gone.is_empty(),
        "{LIST} lacks {new:#?} and has {gone:#?}, which are not there"
    );
}

/// Build scripts of ours open no connection, and start cargo alone.
#[test]
fn building_fetches_nothing() {
    let metadata = metadata();
    let packages = metadata.workspace_packages();
    let targets = packages.iter().flat_map(|package| &package.targets);
    let scripts: Vec<_> = targets
        .filter(|target| target.kind.contains(&TargetKind::CustomBuild))
        .collect();
    assert!(
        !scripts.is_empty(),
        "the library's build script was looked at"
    );
    for script in scripts {
        let text = fs::read_to_string(&script.src_path).expect("a build script");
        for word in ["std::net", "TcpStream", "http", "curl", "wget"] {
            assert!(!text.contains(word), "{} has {word}", script.src_path);
        }
        let started = text.split("Command::new(").skip(1);
        for program in started.filter_map(|text| text.split(')').next()) {
            assert_eq!(program, "cargo", "{} starts {program}", script.src_path);
        }
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
