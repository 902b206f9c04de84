//! What measurements run beside the operators: a copy, whose time is the ceiling, a read that
//! leaves nothing of theirs in the caches, and a comparison of what they wrote.

use crate::arith::unroll;
use crate::device::{Words4, global, thread};
use crate::params::{CompareParams, CopyParams, FlushParams};
use crate::rows::NO_WORDS;

/// The module of these kernels: no operator needs it.
pub const MODULE: &str = "bench";

/// Words that a thread has under way.
const BATCH: usize = 4;

/// Words that a block of `threads` threads copies.
pub const fn copied_words(threads: u32) -> u32 {
    threads * BATCH as u32
}

/// to_i = from_i.
///
/// Thread t of block b copies words b·4·threads + t and three more, `threads` apart.
///
/// Contract: ⌈words / [`copied_words`]⌉ blocks; at most 2³¹ words; both 16-byte aligned.
///
/// # Safety
/// - `p` describes live buffers as [`CopyParams`] says, which do not overlap.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn copy(p: &CopyParams) {
    let threads = thread::block_dim_x();
    let first = thread::block_idx_x() * copied_words(threads) + thread::thread_idx_x();
    let index = |i: usize| first + i as u32 * threads;
    let mut words = [NO_WORDS; BATCH];
    unroll!(BATCH, |i| {
        if index(i) < p.words {
            // Through L1: past it an H200 reads 5 to 10 % slower.
            // SAFETY: inside the buffer, which nobody writes.
            words[i] = unsafe { global::load_words4(p.from.add(index(i) as usize)) };
        }
    });
    unroll!(BATCH, |i| {
        if index(i) < p.words {
            // SAFETY: inside the buffer; no other thread has this word.
            unsafe { global::store_words4(p.to.add(index(i) as usize), words[i]) }
        }
    });
}

/// Reads a buffer of zeros, larger than the caches.
///
/// Stores to `sink` only if a word is not zero, and exists so that the loads have a purpose.
///
/// Contract: any number of blocks; at most 2³¹ words; 16-byte aligned.
///
/// # Safety
/// - `p` describes live buffers as [`FlushParams`] says.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn flush(p: &FlushParams) {
    let threads = thread::block_dim_x() * thread::grid_dim_x();
    let mut first = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
    let mut any = 0;
    while first < p.words {
        let mut words = [NO_WORDS; BATCH];
        unroll!(BATCH, |i| {
            let index = first + i as u32 * threads;
            if index < p.words {
                // SAFETY: inside the buffer, which nobody writes.
                words[i] = unsafe { global::load_words4(p.from.add(index as usize)) };
            }
        });
        unroll!(BATCH, |i| {
            let Words4(a, b, c, d) = words[i];
            any |= a | b | c | d;
        });
        first += BATCH as u32 * threads;
    }
    if any != 0 {
        // SAFETY: one FP32 value; the buffer holds zeros, so no thread comes here.
        unsafe { global::store_f32(p.sink, 1.0) }
    }
}

/// Stores 1 to `flag` if any word of `a` and `b` differs.
///
/// Contract: any number of blocks; at most 2³¹ words; 16-byte aligned.
///
/// # Safety
/// - `p` describes live buffers as [`CompareParams`] says.
/// - The launch keeps the contract.
#[inline(always)]
pub unsafe fn compare(p: &CompareParams) {
    let threads = thread::block_dim_x() * thread::grid_dim_x();
    let mut index = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
    let mut differ = false;
    while index < p.words {
        // SAFETY: inside both buffers, which nobody writes.
        let (a, b) = unsafe {
            (
                global::load_words4(p.a.add(index as usize)),
                global::load_words4(p.b.add(index as usize)),
            )
        };
        differ |= (a.0 ^ b.0) | (a.1 ^ b.1) | (a.2 ^ b.2) | (a.3 ^ b.3) != 0;
        index += threads;
    }
    if differ {
        // SAFETY: one FP32 value. Several threads may store it, all the same.
        unsafe { global::store_f32(p.flag, 1.0) }
    }
}
