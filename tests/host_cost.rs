//! What a call costs on the host: no heap allocation, whatever is asked for.

#[path = "common/null.rs"]
mod null;

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::null::Null;
use cake_rmsnorm::plan::{DeviceProperties, Views};
use null::Call;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Allocations of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted.
struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's obligations.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's obligations.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(body: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    body();
    ALLOCATIONS.get() - before
}

/// Every route: widths, few rows and many, none, both weights, both forms.
fn calls() -> impl Iterator<Item = Call> {
    let widths = [8, 256, 512, 1024, 2048, 4096, 6144, 8192, 16_384, 65_536];
    let heights = [0, 1, 64, 512, 513, 65_536];
    widths.into_iter().flat_map(move |hidden| {
        heights
            .into_iter()
            .flat_map(move |rows| [false, true].map(|residual| Call::new(hidden, rows, residual)))
    })
}

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    let grows = || {
        let mut bytes = std::hint::black_box(vec![0u8; 1]);
        bytes.reserve_exact(1 << 20);
        drop(std::hint::black_box(bytes));
    };
    assert_eq!(allocations(grows), 2);
}

#[test]
fn a_call_allocates_nothing() {
    let null = Null::new(DeviceProperties::H200);
    for call in calls() {
        null.prepare(&call.op, call.residual, Views::Ordinary)
            .expect("a null device");
        let count = allocations(|| call.forward(&null));
        assert_eq!(count, 0, "forward, {call}");
        let count = allocations(|| call.backward(&null));
        assert_eq!(count, 0, "backward, {call}");
    }
    // 10 widths, 6 heights, 2 forms: a forward, and a backward of one or two launches.
    assert!(null.launches() >= 10 * 5 * 2 * 2, "{}", null.launches());
}
