//! Arbitrary calls of a gated operator: both orders, groups, tensors of any type, strides and place
//! in an arena. The account says nothing of outputs that lie in another tensor's gaps in other ways
//! than slices of one buffer do.

use super::arena::ARENA;
use super::judge::{self, Argument as _, Call as _, Verdict};
use arbitrary::{Result, Unstructured};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::gated::{
    GateOrder, GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView,
};
use cake_rmsnorm::{Dtype, Update, VectorView, Workspace};
use std::collections::HashSet;

/// An argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
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
pub struct Argument {
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

    /// Whether its rows lie one behind the other: a token's heads and then the next token's, or a
    /// head's tokens and then the next head's.
    fn ascends(&self, base: u64) -> bool {
        let rows = self.starts(base);
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

impl judge::Argument for Argument {
    type Name = Name;

    fn name(&self) -> Name {
        self.name
    }

    fn address(&self) -> u64 {
        self.view.address
    }

    fn is_output(&self) -> bool {
        self.output
    }

    fn is_scratch(&self) -> bool {
        self.name == Name::Workspace
    }

    fn rows(&self) -> Vec<u64> {
        vec![self.view.tokens, self.view.heads]
    }

    fn hidden(&self) -> u64 {
        self.view.hidden
    }

    fn bytes(&self) -> u64 {
        self.view.dtype.bytes()
    }

    /// Of a token's heads, then of the next token's.
    fn starts(&self, base: u64) -> Vec<i128> {
        let HeadsView { tokens, heads, .. } = self.view;
        let bytes = i128::from(self.bytes());
        let start = i128::from(self.view.address) - i128::from(base);
        let of_token = |token: u64| {
            let token = i128::from(token) * i128::from(self.view.token_stride);
            let head = move |head: u64| i128::from(head) * i128::from(self.view.head_stride);
            (0..heads).map(move |index| start + (token + head(index)) * bytes)
        };
        (0..tokens).flat_map(of_token).collect()
    }
}

/// A call.
pub enum Call {
    Forward(GatedForwardArgs),
    Backward(GatedBackwardArgs),
}

impl judge::Call for Call {
    type Operator = GatedRmsNorm;
    type Argument = Argument;

    fn operator(u: &mut Unstructured<'_>) -> Result<cake_rmsnorm::Result<GatedRmsNorm>> {
        operator(u)
    }

    fn draw(u: &mut Unstructured<'_>, op: &GatedRmsNorm, base: u64) -> Result<Self> {
        call(u, op, base)
    }

    fn account(&self, op: &GatedRmsNorm, base: u64) -> Verdict {
        account(op, self, base)
    }

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

    unsafe fn run(&self, backend: &dyn Backend, op: &GatedRmsNorm) -> cake_rmsnorm::Result<()> {
        // SAFETY: the caller's obligations.
        unsafe {
            match self {
                Call::Forward(args) => backend.gated_forward(op, args),
                Call::Backward(args) => backend.gated_backward(op, args),
            }
        }
    }

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

fn account(op: &GatedRmsNorm, call: &Call, base: u64) -> Verdict {
    let arguments = call.arguments();
    let first = arguments[0].view;
    let rows = first.tokens.saturating_mul(first.heads);
    if arguments.iter().any(|it| !fits(op, it, &first, rows)) {
        return Verdict::Wrong;
    }
    let mut verdict = Verdict::Right { shares: false };
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
                    Verdict::Right { shares: true }
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
        && (vectors || !name.is_tensor() || argument.is_empty())
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
            2 => own.wrapping_add(self.u.int_in_range(1..=15)?),
            // Anywhere in the arena, where others may be.
            3 | 4 => self.base + self.u.int_in_range(0..=ARENA as u64 / 16)? * 16,
            // Where another one is.
            5 | 6 => self.base + self.u.int_in_range(0..=9)? * Self::PART,
            7..=20 => own.wrapping_add(16 * self.u.int_in_range(0..=4)?),
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
            // In the first of two parts, beside its neighbour (of any width, so that this may wrap).
            let beside = (index % 2).wrapping_mul(hidden.wrapping_mul(2));
            own = (self.base + index / 2 % 5 * 2 * Self::PART).wrapping_add(beside);
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
        1 => (0, 3),
        2 => (3, 0),
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
