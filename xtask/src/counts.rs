//! What the launch contracts count in a kernel's PTX.

use crate::{
    manifest::Target,
    ptx_text::{Entry, Module, opcode},
};
use cake_rmsnorm_kernels::{KERNELS, contract::PtxCounts};

/// A block or named barrier.
pub fn is_barrier(opcode: &str) -> bool {
    opcode.starts_with("bar.sync")
        || opcode.starts_with("barrier.sync")
        || opcode.starts_with("barrier.cta.sync")
}

/// An exchange between lanes.
pub fn is_shuffle(opcode: &str) -> bool {
    opcode.starts_with("shfl.")
}

/// A global load of 16 bytes.
pub fn is_vector_load(opcode: &str) -> bool {
    opcode.starts_with("ld.") && is_vector_access(opcode)
}

/// A global store of 16 bytes.
pub fn is_vector_store(opcode: &str) -> bool {
    opcode.starts_with("st.") && is_vector_access(opcode)
}

fn is_vector_access(opcode: &str) -> bool {
    let wide = ["v4.b32", "v4.u32", "v4.f32", "v2.b64", "v2.u64", "v2.f64"];
    opcode.contains(".global") && wide.iter().any(|end| opcode.ends_with(end))
}

/// The lines of an entry's instructions that are of a kind.
pub fn places(entry: &Entry<'_>, is_one: fn(&str) -> bool) -> Vec<usize> {
    let found = entry
        .statements()
        .filter(|statement| is_one(opcode(statement.text)));
    found.map(|statement| statement.number).collect()
}

/// What an entry holds of what the contracts count.
pub fn of(entry: &Entry<'_>) -> PtxCounts {
    let count = |is_one| u32::try_from(places(entry, is_one).len()).unwrap_or(u32::MAX);
    PtxCounts {
        barriers: count(is_barrier),
        shuffles: count(is_shuffle),
        vector_loads: count(is_vector_load),
        vector_stores: count(is_vector_store),
    }
}

/// Prints the counts in the order and the form of the contracts: barriers, shuffles, 16-byte
/// loads, 16-byte stores.
pub fn print(files: &[(&str, Target, String)]) {
    let modules: Vec<_> = files
        .iter()
        .map(|(_, target, text)| (*target, Module::parse(text)))
        .collect();
    for kernel in KERNELS {
        let found = modules.iter().flat_map(|(target, module)| {
            let entries = module.entries.iter();
            let entries = entries.filter(|entry| entry.name == kernel.name);
            entries.map(|entry| (target.sm, of(entry)))
        });
        let found: Vec<_> = found.collect();
        println!("{} {}", kernel.name, counts_line(&found, kernel.ptx));
    }
}

/// The counts of a kernel's targets: once, where they agree.
fn counts_line(found: &[(u32, PtxCounts)], contract: PtxCounts) -> String {
    let numbers = |counts: PtxCounts| {
        let PtxCounts {
            barriers,
            shuffles,
            vector_loads,
            vector_stores,
        } = counts;
        format!("[{barriers}, {shuffles}, {vector_loads}, {vector_stores}]")
    };
    let line = match found {
        [] => return "missing".to_owned(),
        [(_, first), rest @ ..] if rest.iter().all(|(_, counts)| counts == first) => {
            numbers(*first)
        }
        all => {
            let each = all
                .iter()
                .map(|(sm, counts)| format!("sm_{sm} {}", numbers(*counts)));
            each.collect::<Vec<_>>().join(", ")
        }
    };
    if found.iter().all(|(_, counts)| *counts == contract) {
        format!("{line};")
    } else {
        format!("{line}; // the contract says {}", numbers(contract))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_printed_once_where_the_targets_agree() {
        let contract = crate::lint::tests::kernel("a").ptx;
        let more = PtxCounts {
            barriers: 2,
            ..contract
        };
        let line = |found: &[(u32, PtxCounts)]| counts_line(found, contract);
        assert_eq!(line(&[(80, contract), (90, contract)]), "[1, 1, 2, 1];");
        assert_eq!(
            line(&[(80, more), (90, more)]),
            "[2, 1, 2, 1]; // the contract says [1, 1, 2, 1]"
        );
        assert_eq!(
            line(&[(80, contract), (90, more)]),
            "sm_80 [1, 1, 2, 1], sm_90 [2, 1, 2, 1]; // the contract says [1, 1, 2, 1]"
        );
        assert_eq!(line(&[]), "missing");
    }
}
