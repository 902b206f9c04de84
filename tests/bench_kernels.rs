//! The kernels that a benchmark times beside the operators, under the simulator.

use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::backend::{Bound, Launcher};
use cake_rmsnorm::kernels::bench::copied_words;
use cake_rmsnorm::kernels::contract::{Kernel, Program};
use cake_rmsnorm::kernels::params::{CompareParams, CopyParams, FlushParams};
use cake_rmsnorm::kernels::{KERNELS, device::Words4};
use cake_rmsnorm::plan::Launch;

fn kernel(program: Program) -> &'static Kernel {
    let found = KERNELS.iter().find(|kernel| kernel.program == program);
    found.expect("in the table")
}

fn launch<P>(sim: &Sim, program: Program, grid: u32, block: u32, params: &P) {
    let kernel = kernel(program);
    assert_eq!(kernel.param_bytes, size_of::<P>());
    assert!(block <= kernel.max_threads);
    let launch = Launch {
        kernel,
        grid,
        block,
        shared_bytes: 0,
        dependent: false,
    };
    let params = std::ptr::from_ref(params).cast();
    // SAFETY: the parameters are the kernel's; the simulator knows the memory.
    unsafe { sim.launch(&[Bound { launch, params }]) }.expect("no fault");
}

/// Every word arrives once, at lengths beside multiples of a block's, and none behind the end.
#[test]
fn the_copy_copies() {
    for block in [32, 256] {
        for words in [1, 31, 128, 129, 1023, 1024, 1025, 4099] {
            let sim = Sim::new();
            let bytes: Vec<u8> = (0..16 * words).map(|i| (i * 7 + i / 251) as u8).collect();
            let from = sim.alloc("from", bytes.len());
            let to = sim.alloc("to", bytes.len() + 16);
            from.write(&bytes).expect("fits");
            to.write(&vec![0xee; bytes.len() + 16]).expect("fits");
            let params = CopyParams {
                from: from.address() as usize as *const Words4,
                to: to.address() as usize as *mut Words4,
                words,
            };
            let grid = words.div_ceil(copied_words(block));
            launch(&sim, Program::Copy, grid, block, &params);
            let copied = to.read().expect("known");
            assert!(copied[..bytes.len()] == bytes, "{words} words, {block}");
            assert!(copied[bytes.len()..].iter().all(|&byte| byte == 0xee));
        }
    }
}

/// A word that is not zero is noticed wherever it lies, so every word is read; zeros write nothing.
#[test]
fn the_flush_reads_every_word() {
    let (grid, block, words) = (3, 32, 2 * 4 * 3 * 32 + 17);
    let sink_of = |place: Option<usize>| {
        let sim = Sim::new();
        let mut bytes = vec![0u8; 16 * words];
        if let Some(place) = place {
            bytes[16 * place + place % 16] = 1;
        }
        let from = sim.alloc("from", bytes.len());
        let sink = sim.alloc("sink", 4);
        from.write(&bytes).expect("fits");
        sink.write(&[0; 4]).expect("fits");
        let params = FlushParams {
            from: from.address() as usize as *const Words4,
            sink: sink.address() as usize as *mut f32,
            words: words as u32,
        };
        launch(&sim, Program::Flush, grid, block, &params);
        sink.read().expect("known")
    };
    assert_eq!(sink_of(None), [0; 4]);
    for place in 0..words {
        assert_eq!(sink_of(Some(place)), 1f32.to_le_bytes(), "word {place}");
    }
}

/// One bit in any word is noticed; equal buffers raise nothing.
#[test]
fn the_comparison_compares_every_word() {
    let (grid, block, words) = (3, 32, 2 * 3 * 32 + 17);
    let flag_of = |place: Option<usize>| {
        let sim = Sim::new();
        let bytes: Vec<u8> = (0..16 * words).map(|i| (i * 7 + i / 251) as u8).collect();
        let (a, b) = (sim.alloc("a", bytes.len()), sim.alloc("b", bytes.len()));
        let flag = sim.alloc("flag", 4);
        a.write(&bytes).expect("fits");
        let mut other = bytes;
        if let Some(place) = place {
            other[16 * place + place % 16] ^= 0x10;
        }
        b.write(&other).expect("fits");
        flag.write(&[0; 4]).expect("fits");
        let params = CompareParams {
            a: a.address() as usize as *const Words4,
            b: b.address() as usize as *const Words4,
            flag: flag.address() as usize as *mut f32,
            words: words as u32,
        };
        launch(&sim, Program::Compare, grid, block, &params);
        flag.read().expect("known")
    };
    assert_eq!(flag_of(None), [0; 4]);
    for place in 0..words {
        assert_eq!(flag_of(Some(place)), 1f32.to_le_bytes(), "word {place}");
    }
}
