//! Arbitrary calls of a gated operator on the CPU, and now and then under the simulator: both orders,
//! groups, tensors of any type, strides and place in an arena. Held against an account of the arena's
//! bytes that shares nothing with the library's validation.
//!
//! - A call that is refused changes nothing.
//! - A call that is accepted writes its outputs' elements and nothing else, with the bits that it
//!   gives on packed copies.
//! - What is wrong by the account is refused. What is right by it is accepted; the account does not
//!   say so of outputs that lie in another tensor's gaps in other ways than slices of one buffer do.

use super::arena::{ARENA, Memory, Outcome, simulated};
use arbitrary::{Result, Unstructured};
use cake_rmsnorm::backend::{Backend, cpu::Cpu, null::Null};
use cake_rmsnorm::gated::{
    GateOrder, GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView,
};
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{Dtype, Error, Update, VectorView, Workspace};
use std::collections::HashSet;

/// Most tokens and heads whose bytes are accounted for.
const MOST: u64 = 64;

/// An argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    X,
    Z,
    W,
    Y,
    Rstd,
    Dy,
    Dx,
    Dz,
    Dw,
    Workspace,
}

impl Name {
    fn is_tensor(self) -> bool {
        matches!(
            self,
            Name::X | Name::Z | Name::Y | Name::Dy | Name::Dx | Name::Dz
        )
    }
}

/// An argument as the account sees it. A vector is a token with a head.
#[derive(Clone, Copy, Debug)]
struct Argument {
    name: Name,
    view: HeadsView,
    output: bool,
}

impl Argument {
    fn vector(name: Name, view: VectorView, output: bool) -> Self {
        let view = HeadsView {
            dtype: view.dtype,
            ..HeadsView::packed(view.address, 1, 1, view.len)
        };
        Self { name, view, output }
    }

    fn is_empty(&self) -> bool {
        self.view.tokens == 0 || self.view.heads == 0 || self.view.hidden == 0
    }

    fn width(&self) -> i128 {
        i128::from(self.view.hidden) * i128::from(self.view.dtype.bytes())
    }

    /// The first bytes of its rows seen from `base`: of a token's heads, then of the next token's.
    fn rows(&self, base: u64) -> Vec<i128> {
        let HeadsView { tokens, heads, .. } = self.view;
        let bytes = i128::from(self.view.dtype.bytes());
        let start = i128::from(self.view.address) - i128::from(base);
        let of_token = |token: u64| {
            let token = i128::from(token) * i128::from(self.view.token_stride);
            let head = move |head: u64| i128::from(head) * i128::from(self.view.head_stride);
            (0..heads).map(move |index| start + (token + head(index)) * bytes)
        };
        (0..tokens).flat_map(of_token).collect()
    }

    /// Whether every element is the arena's (or there is none, or no address).
    fn is_inside(&self, base: u64) -> bool {
        if self.is_empty() || self.view.address == 0 {
            return true;
        }
        let few = self.view.tokens <= MOST && self.view.heads <= MOST;
        few && self.view.hidden <= ARENA as u64
            && self
                .rows(base)
                .iter()
                .all(|start| *start >= 0 && start + self.width() <= ARENA as i128)
    }

    /// Its bytes' places in the arena, row after row.
    fn places(&self, base: u64) -> Vec<usize> {
        if self.is_empty() {
            return Vec::new();
        }
        let width = self.width() as usize;
        let rows = self.rows(base).into_iter();
        rows.flat_map(|start| start as usize..start as usize + width)
            .collect()
    }

    /// Whether its rows lie one behind the other: a token's heads and then the next token's, or a
    /// head's tokens and then the next head's.
    fn ascends(&self, base: u64) -> bool {
        let rows = self.rows(base);
        let behind = |rows: &[i128]| rows.windows(2).all(|two| two[0] + self.width() <= two[1]);
        let heads = self.view.heads as usize;
        let turned: Vec<_> = (0..heads)
            .flat_map(|head| rows.iter().skip(head).step_by(heads).copied())
            .collect();
        behind(&rows) || behind(&turned)
    }

    /// The strides that move anything, in bytes.
    fn strides(&self) -> [i128; 2] {
        let of = |count: u64, stride: i64| i128::from(stride) * i128::from(u8::from(count > 1));
        let bytes = i128::from(self.view.dtype.bytes());
        [
            bytes * of(self.view.tokens, self.view.token_stride),
            bytes * of(self.view.heads, self.view.head_stride),
        ]
    }

    /// Whether both are slices of the last dimension of one buffer, and of other columns.
    fn beside(&self, other: &Self, base: u64) -> bool {
        let strides = self.strides();
        let steps = || {
            strides
                .iter()
                .map(|stride| stride.abs())
                .filter(|step| *step > 0)
        };
        let Some(period) = steps().min() else {
            return false;
        };
        if strides != other.strides() || steps().any(|step| step % period != 0) {
            return false;
        }
        let columns = |it: &Self| -> HashSet<i128> {
            let places = it.places(base).into_iter();
            places.map(|place| place as i128 % period).collect()
        };
        columns(self).is_disjoint(&columns(other))
    }
}

/// A call.
#[derive(Clone, Copy)]
enum Call {
    Forward(GatedForwardArgs),
    Backward(GatedBackwardArgs),
}

impl Call {
    fn arguments(&self) -> Vec<Argument> {
        let tensor = |name, view, output| Argument { name, view, output };
        let mut arguments = match self {
            Call::Forward(args) => vec![
                tensor(Name::X, args.x, false),
                tensor(Name::Z, args.z, false),
                Argument::vector(Name::W, args.w, false),
                tensor(Name::Y, args.y, true),
            ],
            Call::Backward(args) => {
                let scratch = VectorView::f32(args.workspace.address, args.workspace.bytes / 4);
                vec![
                    tensor(Name::Dy, args.dy, false),
                    tensor(Name::X, args.x, false),
                    tensor(Name::Z, args.z, false),
                    Argument::vector(Name::W, args.w, false),
                    tensor(Name::Dx, args.dx, true),
                    tensor(Name::Dz, args.dz, true),
                    Argument::vector(Name::Workspace, scratch, true),
                ]
            }
        };
        let (rstd, forward, dw) = match self {
            Call::Forward(args) => (args.rstd, true, None),
            Call::Backward(args) => (args.rstd, false, args.dw),
        };
        arguments.extend(rstd.map(|view| Argument::vector(Name::Rstd, view, forward)));
        arguments.extend(dw.map(|(view, _)| Argument::vector(Name::Dw, view, true)));
        arguments
    }

    /// # Safety
    /// - As [`Backend::gated_forward`] and [`Backend::gated_backward`].
    unsafe fn run(&self, backend: &dyn Backend, op: &GatedRmsNorm) -> cake_rmsnorm::Result<()> {
        // SAFETY: the caller's obligations.
        unsafe {
            match self {
                Call::Forward(args) => backend.gated_forward(op, args),
                Call::Backward(args) => backend.gated_backward(op, args),
            }
        }
    }

    /// The same call with each argument at another address, packed.
    fn packed(&self, place: impl Fn(Name) -> u64) -> Call {
        let tensor = |name, view: HeadsView| HeadsView {
            dtype: view.dtype,
            ..HeadsView::packed(place(name), view.tokens, view.heads, view.hidden)
        };
        let vector = |name, view: VectorView| VectorView {
            address: place(name),
            ..view
        };
        match *self {
            Call::Forward(args) => Call::Forward(GatedForwardArgs {
                x: tensor(Name::X, args.x),
                z: tensor(Name::Z, args.z),
                w: vector(Name::W, args.w),
                y: tensor(Name::Y, args.y),
                rstd: args.rstd.map(|view| vector(Name::Rstd, view)),
            }),
            Call::Backward(args) => Call::Backward(GatedBackwardArgs {
                dy: tensor(Name::Dy, args.dy),
                x: tensor(Name::X, args.x),
                z: tensor(Name::Z, args.z),
                w: vector(Name::W, args.w),
                rstd: args.rstd.map(|view| vector(Name::Rstd, view)),
                dx: tensor(Name::Dx, args.dx),
                dz: tensor(Name::Dz, args.dz),
                dw: args
                    .dw
                    .map(|(view, update)| (vector(Name::Dw, view), update)),
                workspace: Workspace {
                    address: 0,
                    bytes: 0,
                },
            }),
        }
    }
}

/// What the account says of a call whose memory is the arena's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wrong,
    /// It may be refused, and is right if it is not.
    Unsure,
    Right {
        /// Whether an output lies in another tensor's gaps.
        gaps: bool,
    },
}

fn account(op: &GatedRmsNorm, call: &Call, base: u64) -> Verdict {
    let arguments = call.arguments();
    let first = arguments[0].view;
    let rows = first.tokens.saturating_mul(first.heads);
    if arguments.iter().any(|it| !fits(op, it, &first, rows)) {
        return Verdict::Wrong;
    }
    let mut verdict = Verdict::Right { gaps: false };
    for (i, output) in arguments.iter().enumerate().filter(|(_, it)| it.output) {
        let places = output.places(base);
        let set: HashSet<usize> = places.iter().copied().collect();
        if set.len() < places.len() {
            return Verdict::Wrong;
        }
        if output.name.is_tensor() && !output.is_empty() && !output.ascends(base) {
            verdict = Verdict::Unsure;
        }
        for (j, other) in arguments.iter().enumerate() {
            let others = other.places(base);
            if i == j || others.is_empty() || places.is_empty() {
                continue;
            }
            if others.iter().any(|place| set.contains(place)) {
                return Verdict::Wrong;
            }
            let ends =
                |places: &[usize]| (places.iter().min().copied(), places.iter().max().copied());
            let ((start, end), (other_start, other_end)) = (ends(&places), ends(&others));
            if end < other_start || other_end < start {
                continue;
            }
            verdict = match verdict {
                Verdict::Right { .. } if output.beside(other, base) => {
                    Verdict::Right { gaps: true }
                }
                _ => Verdict::Unsure,
            };
        }
    }
    verdict
}

/// Type, shape, address and strides of an argument.
fn fits(op: &GatedRmsNorm, argument: &Argument, first: &HeadsView, rows: u64) -> bool {
    let Argument { name, view, .. } = *argument;
    let (dtype, shape) = match name {
        Name::W => (op.weight(), [1, 1, op.hidden()]),
        Name::Rstd => (Dtype::F32, [1, 1, rows.saturating_mul(op.groups())]),
        Name::Dw => (Dtype::F32, [1, 1, op.hidden()]),
        Name::Workspace => (Dtype::F32, [1, 1, view.hidden]),
        _ => (Dtype::Bf16, [first.tokens, first.heads, op.hidden()]),
    };
    let alignment = if name == Name::Rstd { 4 } else { 16 };
    let placed = argument.is_empty() || view.address != 0 && view.address.is_multiple_of(alignment);
    let vectors = argument.strides().iter().all(|stride| stride % 16 == 0);
    (view.dtype, [view.tokens, view.heads, view.hidden]) == (dtype, shape)
        && placed
        && (vectors || !name.is_tensor())
}

/// Draws a call from `data`, makes it, and judges it; with `simulate` the kernels make it too.
///
/// # Panics
/// When the library did what it should not.
pub fn run(data: &[u8], simulate: bool) -> Outcome {
    let mut source = Unstructured::new(data);
    // With no bytes left, every choice is its first.
    draw(&mut source, simulate).unwrap_or(Outcome::Elsewhere)
}

fn draw(u: &mut Unstructured<'_>, simulate: bool) -> Result<Outcome> {
    let mut arena = Memory::random(ARENA, u.arbitrary()?);
    let op = match operator(u)? {
        Ok(op) => op,
        Err(error) => return Ok(Outcome::Refused(error)),
    };
    let base = arena.address();
    let call = call(u, &op, base)?;
    let arguments = call.arguments();

    // A backend that touches no memory takes anything.
    let null = Null::new(DeviceProperties::H200);
    // SAFETY: it touches no memory.
    let launched = unsafe { call.run(&null, &op) };
    if !arguments.iter().all(|argument| argument.is_inside(base)) {
        return Ok(launched.map_or_else(Outcome::Refused, |()| Outcome::Elsewhere));
    }
    let verdict = account(&op, &call, base);
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
        let scratch = arguments.iter().find(|it| it.name == Name::Workspace);
        let scratch = scratch.map_or(Vec::new(), |it| it.places(base));
        let scratch: HashSet<usize> = scratch.into_iter().collect();
        for (place, byte) in found.into_iter().enumerate() {
            let same = byte == arena.bytes()[place] || scratch.contains(&place);
            assert!(same, "a kernel's byte {place}: {op:?}\n{arguments:#?}");
        }
    }
    let shares = verdict == Verdict::Right { gaps: true };
    Ok(Outcome::Ran { shares })
}

/// What the call gives on packed copies of its arguments: the bytes of each output.
fn expected(op: &GatedRmsNorm, call: &Call, arena: &Memory, base: u64) -> Vec<(Argument, Vec<u8>)> {
    let mut copies: Vec<(Argument, Memory)> = Vec::new();
    for argument in call.arguments() {
        if argument.name == Name::Workspace {
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
        let copy = copies.iter().find(|(argument, _)| argument.name == name);
        copy.map_or(0, |(_, memory)| memory.address())
    };
    let packed = call.packed(place);
    // SAFETY: the copies have room for the elements.
    unsafe { packed.run(&Cpu, op) }.expect("packed copies are accepted as well");
    let outputs = copies.into_iter().filter(|(argument, _)| argument.output);
    outputs
        .map(|(argument, memory)| (argument, memory.bytes().to_vec()))
        .collect()
}

fn operator(u: &mut Unstructured<'_>) -> Result<cake_rmsnorm::Result<GatedRmsNorm>> {
    let order = *u.choose(&[GateOrder::NormFirst, GateOrder::GateFirst])?;
    let groups: u64 = match u.int_in_range(0..=59)? {
        0 => u.arbitrary()?,
        1 => 0,
        2..=20 => u.int_in_range(2..=4)?,
        _ => 1,
    };
    let hidden: u64 = match u.int_in_range(0..=59)? {
        0 => u.arbitrary()?,
        1 => u.int_in_range(0..=64)?,
        2 => *u.choose(&[0, 8192, 8200, 65_536, 65_544])?,
        _ => groups.saturating_mul(8 * u.int_in_range(1..=5)?),
    };
    let eps = match u.int_in_range(0..=9)? {
        0 => u.arbitrary()?,
        1 => 0.0,
        _ => 1e-5,
    };
    let weight = match u.int_in_range(0..=39)? {
        0 => Dtype::F16,
        1..=20 => Dtype::Bf16,
        _ => Dtype::F32,
    };
    Ok(GatedRmsNorm::with_groups(
        order, hidden, groups, weight, eps,
    ))
}

/// How the tensors of a call lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Each in a part of the arena of its own.
    Apart,
    /// Two and two as slices of one buffer.
    Interleaved,
}

/// Draws views: mostly such as fit.
struct Views<'a, 'b> {
    u: &'a mut Unstructured<'b>,
    base: u64,
    next: u64,
    style: Style,
    tokens: u64,
    heads: u64,
}

impl Views<'_, '_> {
    /// Parts of the arena that arguments get, in bytes.
    const PART: u64 = ARENA as u64 / 10 / 16 * 16;

    fn odd(&mut self) -> Result<bool> {
        self.u.ratio(1, 120)
    }

    /// The part of an argument.
    fn part(&mut self) -> u64 {
        self.next += 1;
        self.base + (self.next - 1) % 10 * Self::PART
    }

    fn address(&mut self, own: u64) -> Result<u64> {
        Ok(match self.u.int_in_range(0..=99)? {
            0 => self.u.arbitrary()?,
            1 => 0,
            2 => own + self.u.int_in_range(1..=15)?,
            // Anywhere in the arena, where others may be.
            3 | 4 => self.base + self.u.int_in_range(0..=ARENA as u64 / 16)? * 16,
            // Where another one is.
            5 | 6 => self.base + self.u.int_in_range(0..=9)? * Self::PART,
            7..=20 => own + 16 * self.u.int_in_range(0..=4)?,
            _ => own,
        })
    }

    fn tensor(&mut self, op: &GatedRmsNorm) -> Result<HeadsView> {
        let dtype = if self.odd()? {
            *self.u.choose(&[Dtype::F16, Dtype::F32])?
        } else {
            Dtype::Bf16
        };
        let number = |views: &mut Self, usual: u64| match views.odd()? {
            true => views.u.arbitrary(),
            false => Ok(usual),
        };
        let hidden = number(self, op.hidden())?;
        let (tokens, heads) = (number(self, self.tokens)?, number(self, self.heads)?);
        let index = self.next;
        let mut own = self.part();
        let width = i64::try_from(hidden).unwrap_or(i64::MAX);
        let many = |count: u64, stride: i64| {
            stride.saturating_mul(i64::try_from(count).unwrap_or(i64::MAX))
        };
        let mut head = width;
        if self.style == Style::Interleaved {
            // In the first of two parts, beside its neighbour.
            own = self.base + index / 2 % 5 * 2 * Self::PART + index % 2 * hidden.saturating_mul(2);
            head = many(2, width);
        }
        let mut token = many(heads, head);
        match self.u.int_in_range(0..=39)? {
            0 => (token, head) = (self.u.arbitrary()?, self.u.arbitrary()?),
            1 => {
                let any = |views: &mut Self| views.u.int_in_range(-9..=9i64);
                (token, head) = (8 * any(self)?, 8 * any(self)?);
            }
            2 => (token, head) = (0, 0),
            3 => head = 0,
            4..=6 => {
                head = head.saturating_add(8 * self.u.int_in_range(0..=1)?);
                token = many(heads, head).saturating_add(8 * self.u.int_in_range(0..=1)?);
            }
            // Heads are the outer dimension.
            7..=9 => (token, head) = (head, many(tokens, head)),
            10 => head = head.saturating_add(self.u.int_in_range(1..=7)?),
            _ => {}
        }
        let view = HeadsView::packed(self.address(own)?, tokens, heads, hidden);
        Ok(HeadsView {
            dtype,
            ..view.with_strides(token, head)
        })
    }

    fn vector(&mut self, usual: Dtype, len: u64) -> Result<VectorView> {
        let dtype = if self.odd()? {
            *self.u.choose(&[Dtype::Bf16, Dtype::F16, Dtype::F32])?
        } else {
            usual
        };
        let own = self.part();
        Ok(VectorView {
            address: self.address(own)?,
            dtype,
            len: if self.odd()? {
                self.u.arbitrary()?
            } else {
                len
            },
        })
    }

    fn rstd(&mut self, op: &GatedRmsNorm) -> Result<Option<VectorView>> {
        let len = self.tokens.saturating_mul(self.heads);
        let wanted = self.u.ratio(1, 2)?;
        wanted
            .then(|| self.vector(Dtype::F32, len.saturating_mul(op.groups())))
            .transpose()
    }
}

fn call(u: &mut Unstructured<'_>, op: &GatedRmsNorm, base: u64) -> Result<Call> {
    let (tokens, heads) = match u.int_in_range(0..=39)? {
        0 => (u.arbitrary()?, u.arbitrary()?),
        1 => (0, 1),
        2 => (1, 0),
        _ => (u.int_in_range(1..=4)?, u.int_in_range(1..=3)?),
    };
    let backward: bool = u.arbitrary()?;
    let style = if u.arbitrary()? {
        Style::Interleaved
    } else {
        Style::Apart
    };
    let views = &mut Views {
        u,
        base,
        next: 0,
        style,
        tokens,
        heads,
    };
    let x = views.tensor(op)?;
    if !backward {
        let (y, z) = (views.tensor(op)?, views.tensor(op)?);
        views.next += 1;
        return Ok(Call::Forward(GatedForwardArgs {
            x,
            z,
            w: views.vector(op.weight(), op.hidden())?,
            y,
            rstd: views.rstd(op)?,
        }));
    }
    let z = views.tensor(op)?;
    let (dx, dz) = (views.tensor(op)?, views.tensor(op)?);
    let dy = views.tensor(op)?;
    views.next += 1;
    let w = views.vector(op.weight(), op.hidden())?;
    let rstd = views.rstd(op)?;
    let updates = [None, Some(Update::Overwrite), Some(Update::Accumulate)];
    let dw = match *views.u.choose(&updates)? {
        Some(update) => Some((views.vector(Dtype::F32, op.hidden())?, update)),
        None => None,
    };
    let workspace = match views.u.int_in_range(0..=3)? {
        0 => Workspace {
            address: 0,
            bytes: 0,
        },
        _ => {
            let own = views.part();
            Workspace {
                address: views.address(own)?,
                bytes: views.u.int_in_range(0..=Views::PART)?,
            }
        }
    };
    Ok(Call::Backward(GatedBackwardArgs {
        dy,
        x,
        z,
        w,
        rstd,
        dx,
        dz,
        dw,
        workspace,
    }))
}
