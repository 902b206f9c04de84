//! How fast the simulator runs the kernels on one core, with its checks and without:
//! `cargo test --release --test speed -- --ignored --nocapture`

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::sim::{Sim, SimBuffer};
use cake_rmsnorm::{BackwardArgs, Dtype, RmsNorm, RowsView, VectorView, Workspace};
use cake_rmsnorm_simt::Checks;
use cpu_time::ThreadTime;

const ROWS: u64 = 1032;
const HIDDEN: u64 = 4096;
/// Runs of each kind, in turn.
const REPEATS: usize = 7;

/// A backward's arguments, and the memory that they name.
struct Backward {
    op: RmsNorm,
    args: BackwardArgs,
    _memory: Vec<SimBuffer>,
}

impl Backward {
    fn new(sim: &Sim) -> Self {
        let op = RmsNorm::new(HIDDEN, Dtype::F32, 1e-6).expect("a supported shape");
        let plan = op.backward_plan(ROWS, false, sim.properties());
        let plan = plan.expect("a plan");
        let kernel = plan.main.expect("a launch").kernel;
        assert_eq!(kernel.name, "backward_block_f32_v2r1");
        let mut memory = Vec::new();
        let mut alloc = |name: &str, bytes: u64, contents: Option<&[u8]>| {
            let buffer = sim.alloc(name, bytes as usize);
            if let Some(contents) = contents {
                buffer.write(contents).expect("fits");
            }
            let address = buffer.address();
            memory.push(buffer);
            address
        };
        let elements = ROWS * HIDDEN;
        let matrix: Vec<u16> = (0..elements)
            .map(|i| 0x3f00 + (i % 251) as u16 + ((i % 7) as u16 & 1) * 0x8000)
            .collect();
        let matrix = bytemuck::cast_slice(&matrix);
        let ones = |len: u64| bytemuck::cast_slice(&vec![1.0f32; len as usize]).to_vec();
        let mut rows = |name: &str, contents: Option<&[u8]>| {
            RowsView::packed(alloc(name, 2 * elements, contents), ROWS, HIDDEN)
        };
        let (dy, x) = (rows("dy", Some(matrix)), rows("x", Some(matrix)));
        let dx = rows("dx", None);
        let mut vector = |name: &str, len: u64, contents: Option<&[u8]>| {
            VectorView::f32(alloc(name, 4 * len, contents), len)
        };
        let w = vector("w", HIDDEN, Some(&ones(HIDDEN)));
        let rstd = vector("rstd", ROWS, Some(&ones(ROWS)));
        let dw = vector("dw", HIDDEN, None);
        let bytes = plan.workspace_bytes;
        let workspace = Workspace {
            address: alloc("workspace", bytes, None),
            bytes,
        };
        let args = BackwardArgs {
            dy,
            x,
            dh: None,
            w: Some(w),
            rstd: Some(rstd),
            dx: Some(dx),
            dw: Some(dw.into()),
            workspace,
        };
        Self {
            op,
            args,
            _memory: memory,
        }
    }

    /// Row elements a second of this thread, which is the only worker: what others use of the
    /// core does not count.
    fn rate(&self, sim: &Sim) -> f64 {
        let start = ThreadTime::now();
        // SAFETY: the memory lives as long as `self`.
        unsafe { sim.backward(&self.op, &self.args) }.expect("no fault");
        (ROWS * HIDDEN) as f64 / start.elapsed().as_secs_f64()
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[test]
#[ignore = "measures; wants --release and a quiet core"]
fn without_checks_the_simulator_is_three_times_faster() {
    // Each with memory of its own: without checks nothing is known of what was written.
    let both = [Checks::All, Checks::Off].map(|checks| {
        let sim = Sim::new().with_workers(1).with_checks(checks);
        (Backward::new(&sim), sim)
    });
    let mut rates = [Vec::new(), Vec::new()];
    for repeat in 0..=REPEATS {
        let both = both.each_ref().map(|(backward, sim)| backward.rate(sim));
        // The first run also makes stacks and touches memory.
        if repeat > 0 {
            rates[0].push(both[0]);
            rates[1].push(both[1]);
        }
    }
    let mut ratios: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(a, b)| b / a).collect();
    let [checked, unchecked] = rates.map(|mut rates| median(&mut rates));
    let ratio = median(&mut ratios);
    println!(
        "backward H={HIDDEN} T={ROWS}, one core, median of {REPEATS}: \
         {:.1} million row elements a second with checks, {:.1} without, {ratio:.2} times",
        checked / 1e6,
        unchecked / 1e6,
    );
    assert!(checked >= 1e6 && ratio >= 3.0);
}
