//! mbarriers in shared memory: completion of bulk asynchronous copies (sm_90 and newer).

use crate::check::Fence;
use crate::engine::with_current;
use std::panic::Location;

/// Initialises the mbarrier at shared address `address`, a multiple of 8, for `arrivals`
/// arrivals a phase.
#[track_caller]
pub fn init(address: u32, arrivals: u32) {
    let site = Location::caller();
    with_current(|block| block.mbarrier_init(site, address, arrivals));
}

/// Makes initialisations visible to the asynchronous proxy.
#[track_caller]
pub fn fence_init() {
    let site = Location::caller();
    with_current(|block| block.fence_proxy(site, Fence::Init));
}

/// One arrival that also announces `bytes` more bytes for the current phase.
#[track_caller]
pub fn arrive_expect_tx(address: u32, bytes: u32) {
    let site = Location::caller();
    with_current(|block| block.mbarrier_arrive(site, address, bytes));
}

/// One arrival.
#[track_caller]
pub fn arrive(address: u32) {
    let site = Location::caller();
    with_current(|block| block.mbarrier_arrive(site, address, 0));
}

/// Waits until the phase of parity `parity` has completed.
#[track_caller]
pub fn wait_parity(address: u32, parity: u32) {
    let site = Location::caller();
    with_current(|block| block.mbarrier_wait(site, address, parity));
}
