//! Slicing of modules into entries.

use super::*;
use cake_rmsnorm_kernels::KERNELS;

/// A module of `ptx`.
fn module(ptx: &'static str) -> Module {
    Module {
        name: "test",
        sm: 80,
        ptx,
    }
}

const TWO: &str = "// two\n.version 7.5\n.target sm_80\n.address_size 64\n\
                   .extern .shared .align 128 .b8 cake_dynamic_shared[];\n\
                   .visible .entry a_residual(\n\t.param .b64 p\n)\n{\n\tret;\n}\n\
                   .visible .entry a(\n\t.param .b64 p\n)\n.maxntid 32\n{\n\t{ exit; }\n}\n";

#[test]
fn every_committed_kernel_is_a_module_of_its_own() {
    for module in MODULES {
        let kernels = KERNELS
            .iter()
            .filter(|kernel| kernel.module == module.name && kernel.min_sm <= module.sm);
        let names: Vec<&str> = kernels.map(|kernel| kernel.name).collect();
        let slices: Vec<String> = names
            .iter()
            .map(|name| {
                let slice = module.entry(name);
                slice.unwrap_or_else(|| panic!("{name} for sm_{} is not sliced", module.sm))
            })
            .collect();
        let header = &module.ptx[..module.ptx.find(ENTRY).expect("an entry")];
        let mut bytes = header.len();
        for (name, slice) in names.iter().zip(&slices) {
            assert_eq!(slice.matches(".entry ").count(), 1, "{name}");
            for shared in [".func", "call", ".global .", ".const ."] {
                assert!(!slice.contains(shared), "{name} has {shared}");
            }
            bytes += slice.len() - header.len();
        }
        assert_eq!(
            bytes,
            module.ptx.len(),
            "{} holds nothing else",
            module.name
        );
    }
}

#[test]
fn a_slice_is_the_header_and_one_entry() {
    let slice = module(TWO).entry("a").expect("an entry");
    let (header, _) = TWO.split_at(TWO.find(ENTRY).expect("an entry"));
    let (_, entry) = TWO.split_at(TWO.find(".visible .entry a(").expect("an entry"));
    assert_eq!(slice, format!("{header}{entry}"));
    assert!(module(TWO).entry("a_").is_none());
    assert!(module(TWO).entry("b").is_none());
}

#[test]
fn entries_that_share_more_are_not_sliced() {
    for shared in [
        ".global .align 4 .b8 table[16];\n",
        ".func f()\n{\n\tret;\n}\n",
    ] {
        let before = TWO.replacen(ENTRY, &format!("{shared}{ENTRY}"), 1);
        let between = TWO.replace(".visible .entry a(", &format!("{shared}.visible .entry a("));
        let behind = format!("{TWO}{shared}");
        for ptx in [before, between, behind] {
            assert!(module(ptx.leak()).entry("a").is_none(), "{shared}");
        }
    }
}
