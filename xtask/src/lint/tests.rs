use super::*;
use cake_rmsnorm_kernels::contract::PtxCounts;

const TARGET: Target = Target {
    sm: 90,
    ptx_version: 80,
};

/// The contract of a kernel in module `m`.
pub fn kernel(name: &'static str) -> Kernel {
    Kernel {
        name,
        module: "m",
        max_threads: 256,
        min_blocks: 0,
        min_sm: 80,
        param_bytes: 40,
        ptx: PtxCounts {
            barriers: 1,
            shuffles: 1,
            vector_loads: 2,
            vector_stores: 1,
        },
        // What the PTX does not show.
        ..KERNELS[0]
    }
}

const CLEAN: &str = "\
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 128 .b8 cake_dynamic_shared[];
.visible .entry a(
\t.param .align 8 .b8 a_param_0[40]
)
.maxntid 256
{
\t.reg .pred \t%p<2>;
\tld.param.b64 \t%rd1, [a_param_0];
\tld.global.nc.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
\tld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%rd1];
\tst.shared::cta.f32 [%r9], %r1;
\tbar.sync \t0;
\tshfl.sync.bfly.b32 \t%r1, %r1, 16, 31, -1;
\t@%p1 bra \t$L__BB0_2;
\tsqrt.rn.f32 \t%r1, %r2;
\tred.global.add.u32 \t[%rd1], 1;
\tst.global.cs.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};
$L__BB0_2:
\tret;
}
";

fn findings(text: &str) -> Vec<Finding> {
    check(text, "m", TARGET, &[kernel("a")])
}

/// Replaces `from` by `to` in the clean file and demands that just `rule` finds it in `line`.
#[track_caller]
fn breaks(rule: Rule, line: usize, from: &str, to: &str) -> String {
    assert_eq!(CLEAN.matches(from).count(), 1, "`{from}` is there once");
    let found = findings(&CLEAN.replace(from, to));
    let seen: Vec<_> = found
        .iter()
        .map(|finding| (finding.rule, finding.line))
        .collect();
    assert_eq!(seen, [(rule, line)], "{}", lines(&found));
    found[0].to_string()
}

#[test]
fn a_clean_file_has_no_findings() {
    assert_eq!(findings(CLEAN), []);
}

#[test]
fn a_duplicated_barrier_is_found() {
    let barrier = "\tbar.sync \t0;\n";
    let text = breaks(Rule::Counts, 15, barrier, &barrier.repeat(2));
    assert_eq!(
        text,
        "m.sm_90.ptx:15: a: 2 barriers (lines [15, 16]), the contract says 1 [Counts]"
    );
}

#[test]
fn a_barrier_in_its_other_spelling_is_found() {
    let other = "\tbar.sync \t0;\n\tbarrier.sync.aligned 0;\n";
    breaks(Rule::Counts, 15, "\tbar.sync \t0;\n", other);
}

#[test]
fn a_missing_barrier_is_found() {
    breaks(Rule::Counts, 5, "\tbar.sync \t0;\n", "\n");
}

#[test]
fn an_extra_shuffle_is_found_under_a_predicate() {
    let shuffle = "\t@%p1 bra \t$L__BB0_2;";
    breaks(
        Rule::Counts,
        16,
        shuffle,
        "\t@%p1 shfl.sync.idx.b32 %r1, %r1, 0, 31, -1;",
    );
}

#[test]
fn a_vector_load_that_was_split_is_found() {
    let split = "\tld.global.b32 %r5, [%rd1];\n";
    breaks(
        Rule::Vectors,
        12,
        "\tld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%rd1];\n",
        split,
    );
}

#[test]
fn a_vector_store_that_was_split_is_found() {
    let whole = "\tst.global.cs.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};\n";
    breaks(Rule::Vectors, 5, whole, "\tst.global.b32 [%rd1], %r1;\n");
}

#[test]
fn an_external_function_is_found() {
    let memory = ".address_size 64\n";
    breaks(
        Rule::Calls,
        3,
        memory,
        ".extern .func panic_bounds_check\n(\n)\n;\n",
    );
}

#[test]
fn a_call_is_found() {
    breaks(
        Rule::Calls,
        18,
        "\tsqrt.rn.f32 \t%r1, %r2;\n",
        "\tcall.uni panic, (p);\n",
    );
}

#[test]
fn local_memory_is_found() {
    let first = "\t.reg .pred \t%p<2>;\n";
    breaks(
        Rule::LocalMemory,
        10,
        first,
        "\t.local .align 16 .b8 \t__local_depot0[64];\n",
    );
    breaks(
        Rule::LocalMemory,
        18,
        "sqrt.rn.f32 \t%r1, %r2",
        "ld.local.f32 \t%r1, [%rd9]",
    );
}

#[test]
fn an_access_without_state_space_is_found() {
    breaks(
        Rule::GenericAccess,
        18,
        "sqrt.rn.f32 \t%r1, %r2",
        "ld.b32 \t%r1, [%rd9]",
    );
    breaks(
        Rule::GenericAccess,
        18,
        "sqrt.rn.f32 \t%r1, %r2",
        "st.volatile.b32 \t[%rd9], %r1",
    );
    breaks(Rule::GenericAccess, 19, "red.global.add.u32", "red.add.u32");
}

#[test]
fn an_inexact_operation_is_found() {
    breaks(Rule::Inexact, 18, "sqrt.rn.f32", "sqrt.approx.f32");
    breaks(Rule::Inexact, 18, "sqrt.rn.f32", "sqrt.rn.ftz.f32");
    breaks(
        Rule::Inexact,
        18,
        "sqrt.rn.f32 \t%r1, %r2",
        "div.full.f32 \t%r1, %r2, %r3",
    );
}

#[test]
fn missing_and_wrong_launch_bounds_are_found() {
    let text = breaks(Rule::LaunchBounds, 5, ".maxntid 256\n", "");
    assert!(
        text.contains(".maxntid is missing, the contract says 256"),
        "{text}"
    );
    breaks(Rule::LaunchBounds, 8, ".maxntid 256", ".maxntid 1024");
    breaks(
        Rule::LaunchBounds,
        9,
        ".maxntid 256",
        ".maxntid 256\n.minnctapersm 2",
    );
}

#[test]
fn a_parameter_struct_of_another_size_is_found() {
    breaks(Rule::Parameters, 5, "a_param_0[40]", "a_param_0[48]");
}

#[test]
fn another_target_or_version_is_found() {
    breaks(Rule::Header, 1, "sm_90", "sm_80");
    breaks(Rule::Header, 1, ".version 8.0", ".version 9.1");
}

#[test]
fn missing_doubled_and_unknown_entries_are_found() {
    let rules = |text: &str, kernels: &[Kernel]| -> Vec<Rule> {
        let found = check(text, "m", TARGET, kernels);
        found.iter().map(|finding| finding.rule).collect()
    };
    assert_eq!(rules(CLEAN, &[kernel("a"), kernel("b")]), [Rule::Entries]);
    assert_eq!(rules(CLEAN, &[]), [Rule::Entries]);
    let (_, entry) = CLEAN
        .split_once("cake_dynamic_shared[];\n")
        .expect("an entry");
    assert_eq!(
        rules(&format!("{CLEAN}{entry}"), &[kernel("a")]),
        [Rule::Entries]
    );
}

#[test]
fn another_compiler_is_excused_its_version_and_access_widths_alone() {
    let excused = [Rule::Header, Rule::Vectors];
    assert!(excused.iter().all(|rule| rule.is_the_compilers_choice()));
    let kept = [
        Rule::Counts,
        Rule::Calls,
        Rule::LocalMemory,
        Rule::LaunchBounds,
    ];
    assert!(!kept.iter().any(|rule| rule.is_the_compilers_choice()));
}

#[test]
fn a_copy_without_mask_is_found() {
    let copy = |address: &str| {
        format!("\tcp.async.cg.shared.global.L2::cache_hint [{address}], [%rd1], 16, %rd2;\n")
    };
    let with = |lines: &str| findings(&CLEAN.replace("\tsqrt.rn", &format!("{lines}\tsqrt.rn")));
    let mask = "\tand.b32 \tplace, %r9, 0x3ffff;\n";
    assert_eq!(with(&format!("{mask}{}", copy("place"))), []);
    // No policy, no fault.
    assert_eq!(with("\tcp.async.cg.shared.global [%r9], [%rd1], 16;\n"), []);
    for lines in [
        copy("%r9"),
        format!("{mask}{}", copy("%r9")),
        format!("{mask}{}", copy("place+512")),
    ] {
        let found = with(&lines);
        let rules: Vec<_> = found.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, [Rule::UnmaskedCopy], "{lines}");
    }
}
