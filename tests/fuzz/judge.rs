//! Draws a call, makes it, and judges it, in the same steps for every form:
//!
//! - A call that is refused changes nothing.
//! - A call that is accepted writes its outputs' elements and nothing else, with the bits that it
//!   gives on packed copies; some are made by the kernels too.
//! - What a form's account of the arena's bytes finds wrong is refused, and what it finds right is
//!   accepted.

use super::arena::{ARENA, Memory, Outcome, simulated};
use arbitrary::{Result, Unstructured};
use cake_rmsnorm::Error;
use cake_rmsnorm::backend::{Backend, cpu::Cpu, null::Null};
use cake_rmsnorm::plan::DeviceProperties;
use std::collections::HashSet;
use std::fmt::Debug;

/// Most rows of a tensor in each dimension whose bytes are accounted for.
pub const MOST: u64 = 64;

/// What a form's account, which shares nothing with the library's validation, says of a call whose
/// memory is the arena's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Wrong,
    /// It may be refused, and is right if it is not.
    Unsure,
    Right {
        /// As in [`Outcome::Ran`].
        shares: bool,
    },
}

/// An argument of a call: what it is, and where its elements are.
pub trait Argument: Debug {
    type Name: Copy + PartialEq;

    fn name(&self) -> Self::Name;

    fn address(&self) -> u64;

    fn is_output(&self) -> bool;

    /// Whether what it holds after a call matters to nobody.
    fn is_scratch(&self) -> bool;

    /// Rows in each dimension.
    fn rows(&self) -> Vec<u64>;

    /// Elements of a row.
    fn hidden(&self) -> u64;

    /// Bytes of an element.
    fn bytes(&self) -> u64;

    /// The first bytes of its rows, seen from `base`.
    fn starts(&self, base: u64) -> Vec<i128>;

    /// Bytes of a row.
    fn width(&self) -> i128 {
        i128::from(self.hidden()) * i128::from(self.bytes())
    }

    fn is_empty(&self) -> bool {
        self.hidden() == 0 || self.rows().contains(&0)
    }

    /// Whether every element is the arena's (or there is none, or no address).
    fn is_inside(&self, base: u64) -> bool {
        if self.is_empty() || self.address() == 0 {
            return true;
        }
        let few = self.rows().iter().all(|count| *count <= MOST) && self.hidden() <= ARENA as u64;
        few && self
            .starts(base)
            .iter()
            .all(|start| *start >= 0 && start + self.width() <= ARENA as i128)
    }

    /// Its bytes' places in the arena, row after row.
    fn places(&self, base: u64) -> Vec<usize> {
        if self.is_empty() {
            return Vec::new();
        }
        let width = self.width() as usize;
        let starts = self.starts(base).into_iter();
        starts
            .flat_map(|start| start as usize..start as usize + width)
            .collect()
    }
}

/// The names of a form's arguments.
pub type Name<C> = <<C as Call>::Argument as Argument>::Name;

/// A call of one form.
pub trait Call: Sized {
    type Operator: Debug;
    type Argument: Argument;

    fn operator(u: &mut Unstructured<'_>) -> Result<cake_rmsnorm::Result<Self::Operator>>;

    /// A call whose arguments are mostly in the arena at `base`.
    fn draw(u: &mut Unstructured<'_>, op: &Self::Operator, base: u64) -> Result<Self>;

    fn arguments(&self) -> Vec<Self::Argument>;

    /// The same call with each argument at another address, packed, and without a workspace.
    fn packed(&self, place: impl Fn(Name<Self>) -> u64) -> Self;

    fn account(&self, op: &Self::Operator, base: u64) -> Verdict;

    /// # Safety
    /// - As the functions of [`Backend`].
    unsafe fn run(&self, backend: &dyn Backend, op: &Self::Operator) -> cake_rmsnorm::Result<()>;
}

/// Draws a call from `data`, makes it, and judges it; with `simulate` the kernels make it too.
///
/// # Panics
/// When the library did what it should not.
pub fn run<C: Call>(data: &[u8], simulate: bool) -> Outcome {
    let mut source = Unstructured::new(data);
    // With no bytes left, every choice is its first.
    judge::<C>(&mut source, simulate).unwrap_or(Outcome::Elsewhere)
}

fn judge<C: Call>(u: &mut Unstructured<'_>, simulate: bool) -> Result<Outcome> {
    let mut arena = Memory::random(ARENA, u.arbitrary()?);
    let op = match C::operator(u)? {
        Ok(op) => op,
        Err(error) => return Ok(Outcome::Refused(error)),
    };
    let base = arena.address();
    let call = C::draw(u, &op, base)?;
    let arguments = call.arguments();

    // A backend that touches no memory takes anything.
    let null = Null::new(DeviceProperties::H200);
    // SAFETY: it touches no memory.
    let launched = unsafe { call.run(&null, &op) };
    if !arguments.iter().all(|argument| argument.is_inside(base)) {
        return Ok(launched.map_or_else(Outcome::Refused, |()| Outcome::Elsewhere));
    }
    let verdict = call.account(&op, base);
    let before = arena.clone();
    // SAFETY: every element is the arena's; what is misaligned or overlaps is refused.
    let result = unsafe { call.run(&Cpu, &op) };
    if let Err(error) = result {
        assert!(arena == before, "a refused call wrote: {error}");
        let right = matches!(verdict, Verdict::Right { .. });
        assert!(
            !right,
            "refused without a reason: {error}\n{op:?}\n{arguments:#?}"
        );
        return Ok(Outcome::Refused(error));
    }
    assert_ne!(verdict, Verdict::Wrong, "accepted: {op:?}\n{arguments:#?}");
    let workspace_is_small = matches!(launched, Err(Error::WorkspaceTooSmall { .. }));
    assert!(
        launched.is_ok() || workspace_is_small,
        "a GPU refuses: {launched:?}"
    );

    let mut written = vec![false; ARENA];
    for (argument, bytes) in expected(&op, &call, &before, base) {
        for (place, byte) in argument.places(base).into_iter().zip(bytes) {
            assert_eq!(arena.bytes()[place], byte, "bits of {argument:?}");
            written[place] = true;
        }
    }
    let places = before.bytes().iter().zip(arena.bytes()).zip(&written);
    let beside = places.filter(|((old, new), written)| old != new && !**written);
    assert_eq!(
        beside.count(),
        0,
        "bytes beside the outputs: {arguments:#?}"
    );
    if simulate && launched.is_ok() {
        // SAFETY: as for the CPU.
        let found = simulated(&mut arena, &before, |sim| unsafe { call.run(sim, &op) });
        let scratch = arguments.iter().filter(|argument| argument.is_scratch());
        let scratch: HashSet<usize> = scratch.flat_map(|it| it.places(base)).collect();
        for (place, byte) in found.into_iter().enumerate() {
            let same = byte == arena.bytes()[place] || scratch.contains(&place);
            assert!(same, "a kernel's byte {place}: {op:?}\n{arguments:#?}");
        }
    }
    let shares = verdict == Verdict::Right { shares: true };
    Ok(Outcome::Ran { shares })
}

/// What the call gives on packed copies of its arguments: the bytes of each output.
fn expected<C: Call>(
    op: &C::Operator,
    call: &C,
    arena: &Memory,
    base: u64,
) -> Vec<(C::Argument, Vec<u8>)> {
    let mut copies: Vec<(C::Argument, Memory)> = Vec::new();
    for argument in call.arguments() {
        if argument.is_scratch() {
            continue;
        }
        let places = argument.places(base);
        let mut memory = Memory::new(places.len().max(16));
        for (to, place) in memory.bytes_mut().iter_mut().zip(&places) {
            // What an output holds matters where it is added to.
            *to = arena.bytes()[*place];
        }
        copies.push((argument, memory));
    }
    let place = |name| {
        let copy = copies.iter().find(|(argument, _)| argument.name() == name);
        copy.map_or(0, |(_, memory)| memory.address())
    };
    let packed = call.packed(place);
    // SAFETY: the copies have room for the elements.
    unsafe { packed.run(&Cpu, op) }.expect("packed copies are accepted as well");
    let outputs = copies
        .into_iter()
        .filter(|(argument, _)| argument.is_output());
    outputs
        .map(|(argument, memory)| (argument, memory.bytes().to_vec()))
        .collect()
}
