//! Dependent launch: a kernel that starts while its predecessor drains (sm_90 and newer).

use crate::engine::with_current;
use std::panic::Location;

/// Waits until the preceding kernel of the stream has completed and its writes are visible.
/// Returns at once unless the launch is dependent.
#[track_caller]
pub fn wait() {
    let site = Location::caller();
    with_current(|block| block.wait_for_predecessor(site));
}

/// Lets the following kernel of the stream start once every block has called this or ended.
#[track_caller]
pub fn launch_dependents() {
    let site = Location::caller();
    with_current(|block| block.trigger(site));
}
