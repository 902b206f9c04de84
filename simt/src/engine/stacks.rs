//! A pool of coroutine stacks.

use corosensei::stack::{self, DefaultStack, StackPointer};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Stacks that are shifted against each other: equal ones would start at the same offset of a
/// page, and a warp's would evict each other from the level 1 cache.
pub(crate) struct Stack {
    pages: DefaultStack,
    shift: usize,
}

/// Distance of the shifts of neighbouring stacks, in bytes: 32 of them spread over a page.
const SHIFT: usize = 128;

// SAFETY: the range lies within that of `pages`, guard page included; `take` adds the space that
// the shift takes away.
unsafe impl stack::Stack for Stack {
    #[inline]
    fn base(&self) -> StackPointer {
        let base = self.pages.base().get() - self.shift;
        StackPointer::new(base).unwrap_or(self.pages.base())
    }

    #[inline]
    fn limit(&self) -> StackPointer {
        self.pages.limit()
    }

    #[cfg(windows)]
    fn teb_fields(&self) -> stack::StackTebFields {
        self.pages.teb_fields()
    }

    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.pages
            .update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}

static POOL: LazyLock<Mutex<HashMap<usize, Vec<DefaultStack>>>> = LazyLock::new(Mutex::default);

/// Takes `count` stacks of at least `bytes` bytes.
pub(crate) fn take(count: usize, bytes: usize) -> std::io::Result<Vec<Stack>> {
    let mut stacks = {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pool.entry(bytes).or_default();
        let keep = free.len().saturating_sub(count);
        free.split_off(keep)
    };
    while stacks.len() < count {
        stacks.push(DefaultStack::new(bytes + 32 * SHIFT)?);
    }
    let shifted = stacks.into_iter().enumerate();
    Ok(shifted
        .map(|(index, pages)| Stack {
            pages,
            shift: index % 32 * SHIFT,
        })
        .collect())
}

/// Gives stacks of `bytes` bytes back.
pub(crate) fn give(stacks: impl Iterator<Item = Stack>, bytes: usize) {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.entry(bytes)
        .or_default()
        .extend(stacks.map(|stack| stack.pages));
}
