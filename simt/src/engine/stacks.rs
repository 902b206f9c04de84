//! A pool of coroutine stacks.

use corosensei::stack::DefaultStack;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

static POOL: LazyLock<Mutex<HashMap<usize, Vec<DefaultStack>>>> = LazyLock::new(Mutex::default);

/// Takes `count` stacks of at least `bytes` bytes.
pub(crate) fn take(count: usize, bytes: usize) -> std::io::Result<Vec<DefaultStack>> {
    let mut stacks = {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pool.entry(bytes).or_default();
        let keep = free.len().saturating_sub(count);
        free.split_off(keep)
    };
    while stacks.len() < count {
        stacks.push(DefaultStack::new(bytes)?);
    }
    Ok(stacks)
}

/// Gives stacks of `bytes` bytes back.
pub(crate) fn give(stacks: impl Iterator<Item = DefaultStack>, bytes: usize) {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.entry(bytes).or_default().extend(stacks);
}
