//! `cargo xtask lint-ptx`: the PTX against the launch contracts, and the rules that every kernel
//! keeps.

use crate::{
    assemble,
    counts::{self, is_barrier, is_shuffle, is_vector_load, is_vector_store},
    manifest::{self, TARGETS, Target},
    postprocess::kernels_of,
    ptx_text::{Entry, Line, Module, opcode},
    workspace,
};
use cake_rmsnorm_kernels::{KERNELS, contract::Kernel};
use std::{
    collections::BTreeSet,
    fmt, fs, io,
    path::{Path, PathBuf},
};

/// Arguments of `cargo xtask lint-ptx`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the PTX [default: ptx].
    #[arg(long, value_name = "DIR")]
    ptx: Option<PathBuf>,
    /// Print the counts found, in the form of the contracts, and check nothing.
    #[arg(long)]
    counts: bool,
    /// The PTX is of a compiler that may choose the PTX version and split 16-byte accesses
    /// (rust-cuda): do not check these.
    #[arg(long)]
    other_compiler: bool,
    /// Leave out the assembly with ptxas.
    #[arg(long)]
    no_assemble: bool,
}

/// Why the lint failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A PTX file cannot be read.
    #[error("{path}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The PTX breaks rules.
    #[error("{}\n{} problems in the PTX", lines(.0), .0.len())]
    Found(Vec<Finding>),
    /// The assembly failed.
    #[error(transparent)]
    Assembly(#[from] assemble::Error),
}

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `.version` and `.target` are those of the build.
    Header,
    /// Every contract has its entry, once, and every entry its contract.
    Entries,
    /// `.maxntid` and `.minnctapersm` are the contract's.
    LaunchBounds,
    /// The parameters have the contract's size.
    Parameters,
    /// Barriers and shuffles are as many as the contract says.
    Counts,
    /// 16-byte global accesses are as many as the contract says.
    Vectors,
    /// No function is called: a call is a panic or a function that was not inlined.
    Calls,
    /// No local memory: a register array that was not unrolled lands there.
    LocalMemory,
    /// Every access names its state space.
    GenericAccess,
    /// No approximation and no flush to zero.
    Inexact,
    /// An asynchronous copy under a cache policy has its address from a mask, right before it.
    /// Where that is a sum with a uniform register, ptxas 12.0 to 13.0 encode the copy wrong.
    UnmaskedCopy,
}

impl Rule {
    /// Whether another compiler may rightly do otherwise.
    fn is_the_compilers_choice(self) -> bool {
        matches!(self, Self::Header | Self::Vectors)
    }
}

/// One place where the PTX breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File name.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The entry, where there is one.
    pub kernel: Option<String>,
    /// The rule.
    pub rule: Rule,
    /// What was found and what is accepted.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "{kernel}: ")?;
        }
        write!(f, "{} [{:?}]", self.message, self.rule)
    }
}

/// Runs the command.
///
/// # Errors
/// The PTX cannot be read, breaks a rule, or does not assemble without stack and spills.
pub fn run(args: &Args) -> Result<(), Error> {
    let folder = args.ptx.clone().unwrap_or_else(workspace::ptx);
    let files = files(&folder)?;
    if args.counts {
        counts::print(&files);
        return Ok(());
    }
    let findings: Vec<_> = files
        .iter()
        .flat_map(|(module, target, text)| check(text, module, *target, KERNELS))
        .filter(|finding| !(args.other_compiler && finding.rule.is_the_compilers_choice()))
        .collect();
    if !findings.is_empty() {
        return Err(Error::Found(findings));
    }
    println!(
        "{} PTX files, {} kernels: as their contracts say",
        files.len(),
        KERNELS.len()
    );
    if !args.no_assemble {
        assemble::assemble(&folder)?;
    }
    Ok(())
}

/// The PTX files that the contracts ask for: module, target, text.
fn files(folder: &Path) -> Result<Vec<(&'static str, Target, String)>, Error> {
    let modules: BTreeSet<_> = KERNELS.iter().map(|kernel| kernel.module).collect();
    let mut files = Vec::new();
    for module in modules {
        for target in TARGETS {
            if kernels_of(KERNELS, module, target.sm).next().is_none() {
                continue;
            }
            let path = folder.join(manifest::file_name(module, target.sm));
            let text = fs::read_to_string(&path).map_err(|source| Error::Io {
                path: path.display().to_string(),
                source,
            })?;
            files.push((module, *target, text));
        }
    }
    Ok(files)
}

/// Checks one PTX file.
pub fn check(text: &str, module: &str, target: Target, kernels: &[Kernel]) -> Vec<Finding> {
    let parsed = Module::parse(text);
    let mut report = Report {
        file: manifest::file_name(module, target.sm),
        findings: Vec::new(),
    };
    check_header(&parsed, target, &mut report);
    for function in parsed.functions.iter().filter(|function| function.external) {
        let message = format!("the external function {} is needed", function.name);
        report.add(None, function.line, Rule::Calls, message);
    }
    for kernel in kernels_of(kernels, module, target.sm) {
        let found = parsed
            .entries
            .iter()
            .filter(|entry| entry.name == kernel.name)
            .count();
        if found != 1 {
            let message = format!("{} is there {found} times, must be once", kernel.name);
            report.add(None, 1, Rule::Entries, message);
        }
    }
    for entry in &parsed.entries {
        check_body(entry, &mut report);
        match kernels_of(kernels, module, target.sm).find(|kernel| kernel.name == entry.name) {
            Some(kernel) => check_contract(entry, kernel, &mut report),
            None => report.add(
                Some(entry),
                entry.line,
                Rule::Entries,
                "has no contract".into(),
            ),
        }
    }
    report.findings
}

struct Report {
    file: String,
    findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, entry: Option<&Entry<'_>>, line: usize, rule: Rule, message: String) {
        let kernel = entry.map(|entry| entry.name.to_owned());
        self.findings.push(Finding {
            file: self.file.clone(),
            line,
            kernel,
            rule,
            message,
        });
    }
}

fn check_header(module: &Module<'_>, target: Target, report: &mut Report) {
    let version = format!("{}.{}", target.ptx_version / 10, target.ptx_version % 10);
    let sm = format!("sm_{}", target.sm);
    for (name, found, expected) in [
        (".version", module.version, version),
        (".target", module.target, sm),
    ] {
        if found != expected {
            let message = format!("{name} is `{found}`, must be `{expected}`");
            report.add(None, 1, Rule::Header, message);
        }
    }
}

fn check_contract(entry: &Entry<'_>, kernel: &Kernel, report: &mut Report) {
    let min_blocks = Some(kernel.min_blocks).filter(|blocks| *blocks > 0);
    for (name, expected) in [
        (".maxntid", Some(kernel.max_threads)),
        (".minnctapersm", min_blocks),
    ] {
        let found = entry.directive(name);
        let operand = found.map(|(_, operand)| operand);
        if operand.map(str::to_owned) != expected.map(|value| value.to_string()) {
            let message = format!(
                "{name} is {}, the contract says {}",
                operand.unwrap_or("missing"),
                expected.map_or("none".to_owned(), |value| value.to_string())
            );
            let line = found.map_or(entry.line, |(line, _)| line);
            report.add(Some(entry), line, Rule::LaunchBounds, message);
        }
    }
    if entry.param_bytes != kernel.param_bytes {
        let message = format!(
            "takes {} bytes of parameters, the contract says {}",
            entry.param_bytes, kernel.param_bytes
        );
        report.add(Some(entry), entry.line, Rule::Parameters, message);
    }
    check_counts(entry, kernel, report);
}

fn check_counts(entry: &Entry<'_>, kernel: &Kernel, report: &mut Report) {
    let contract = kernel.ptx;
    let mut check = |rule, what, is_one, expected: u32| {
        let places = counts::places(entry, is_one);
        if places.len() != expected as usize {
            let line = places.first().copied().unwrap_or(entry.line);
            let found = places.len();
            let message =
                format!("{found} {what} (lines {places:?}), the contract says {expected}");
            report.add(Some(entry), line, rule, message);
        }
    };
    check(Rule::Counts, "barriers", is_barrier, contract.barriers);
    check(Rule::Counts, "shuffles", is_shuffle, contract.shuffles);
    check(
        Rule::Vectors,
        "16-byte loads",
        is_vector_load,
        contract.vector_loads,
    );
    check(
        Rule::Vectors,
        "16-byte stores",
        is_vector_store,
        contract.vector_stores,
    );
}

fn check_body(entry: &Entry<'_>, report: &mut Report) {
    let mut before = None;
    for statement in entry.statements() {
        if let Some((rule, message)) = offence(statement) {
            report.add(Some(entry), statement.number, rule, message);
        }
        if is_copy_by_policy(statement) && before.and_then(masked) != address(statement) {
            let message = format!("an address without mask: `{}`", statement.text);
            report.add(Some(entry), statement.number, Rule::UnmaskedCopy, message);
        }
        before = Some(statement);
    }
}

fn is_copy_by_policy(statement: Line<'_>) -> bool {
    let code = opcode(statement.text);
    code.starts_with("cp.async.") && code.contains("cache_hint")
}

/// The first address of a statement.
fn address(statement: Line<'_>) -> Option<&str> {
    let (_, rest) = statement.text.split_once('[')?;
    Some(rest.split_once(']')?.0.trim())
}

/// What a statement gives, if it masks.
fn masked(statement: Line<'_>) -> Option<&str> {
    let operands = statement.text.strip_prefix("and.b32")?;
    Some(operands.split_once(',')?.0.trim())
}

/// The rule that a statement breaks by itself.
fn offence(statement: Line<'_>) -> Option<(Rule, String)> {
    let code = opcode(statement.text);
    let parts: Vec<_> = code.split('.').collect();
    let is_access = matches!(parts[0], "ld" | "ldu" | "st" | "atom" | "red");
    let named = ["global", "shared", "param", "const", "local"];
    // A state space may carry a scope: `shared::cta`.
    let space = parts
        .iter()
        .map(|part| part.split("::").next().unwrap_or(part));
    let has_space = space.clone().any(|part| named.contains(&part));
    let rule = if parts[0] == "call" {
        Rule::Calls
    } else if code == ".local"
        || statement.text.contains("__local_depot")
        || (is_access && space.clone().any(|part| part == "local"))
    {
        Rule::LocalMemory
    } else if is_access && !has_space {
        Rule::GenericAccess
    } else if !code.starts_with('.')
        && (parts
            .iter()
            .any(|part| matches!(*part, "approx" | "ftz" | "full")))
    {
        Rule::Inexact
    } else {
        return None;
    };
    let what = match rule {
        Rule::Calls => "a call",
        Rule::LocalMemory => "local memory",
        Rule::GenericAccess => "an access without state space",
        _ => "an inexact operation",
    };
    Some((rule, format!("{what}: `{}`", statement.text)))
}

fn lines(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(Finding::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
pub mod tests;
