//! Nanoseconds of a call on the host without a driver: validation, plan, kernel parameters.
//!
//! `cargo bench --bench host`. With a GPU, `cake-rmsnorm bench-host` measures the driver's part too.

#[path = "../tests/common/null.rs"]
#[allow(dead_code)] // what the tests use
mod null;

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::null::Null;
use cake_rmsnorm::plan::{DeviceProperties, Views};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use null::Call;

/// One launch and two: the split backward, and a main kernel with its reduce.
const HEIGHTS: [u64; 2] = [128, 16_384];
const WIDTHS: [u64; 3] = [256, 4096, 16_384];

fn calls(criterion: &mut Criterion) {
    let null = Null::new(DeviceProperties::H200);
    for (name, residual) in [("plain", false), ("residual", true)] {
        let mut forward = criterion.benchmark_group(format!("forward, {name}"));
        for call in shapes(residual) {
            forward.bench_function(BenchmarkId::from_parameter(&call), |bencher| {
                bencher.iter(|| call.forward(&null));
            });
        }
        forward.finish();
        let mut backward = criterion.benchmark_group(format!("backward, {name}"));
        for call in shapes(residual) {
            backward.bench_function(BenchmarkId::from_parameter(&call), |bencher| {
                bencher.iter(|| call.backward(&null));
            });
        }
        backward.finish();
    }
}

fn shapes(residual: bool) -> impl Iterator<Item = Call> {
    WIDTHS
        .into_iter()
        .flat_map(move |hidden| HEIGHTS.map(|rows| Call::new(hidden, rows, residual)))
}

/// What `prepare` costs when everything is loaded.
fn prepare(criterion: &mut Criterion) {
    let null = Null::new(DeviceProperties::H200);
    let call = Call::new(4096, 1, false);
    criterion.bench_function("prepare again", |bencher| {
        bencher.iter(|| null.prepare(&call.op, false, Views::Ordinary));
    });
}

criterion_group!(benches, calls, prepare);
criterion_main!(benches);
