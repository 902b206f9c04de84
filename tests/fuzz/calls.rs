//! Arbitrary calls of an operator: views of any type, shape, stride and place in an arena, options of
//! any kind. The account says nothing of rows in groups.

use super::arena::ARENA;
use super::judge::{self, Argument as _, Call as _, Verdict};
use arbitrary::{Result, Unstructured};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::{
    BackwardArgs, Dtype, ForwardArgs, RmsNorm, RowsView, Update, VectorView, WeightGradient,
    Workspace,
};
use std::collections::HashSet;

/// An argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    X,
    Residual,
    W,
    H,
    Y,
    Rstd,
    Dy,
    Dh,
    Dx,
    Dw,
    DwBf16,
    Workspace,
}

/// An argument as the account sees it: what it is, and where its elements are.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    name: Name,
    view: RowsView,
    output: bool,
    alignment: u64,
}

impl Argument {
    fn new(name: Name, view: RowsView) -> Self {
        let output = matches!(
            name,
            Name::H | Name::Y | Name::Dx | Name::Dw | Name::DwBf16 | Name::Workspace
        );
        Self {
            name,
            view,
            output,
            alignment: view.dtype.bytes(),
        }
    }

    fn output(self) -> Self {
        Self {
            output: true,
            ..self
        }
    }

    fn vector(name: Name, view: VectorView) -> Self {
        let rows = RowsView::packed(view.address, 1, view.len).with_dtype(view.dtype);
        Self::new(name, rows)
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
        vec![self.view.rows]
    }

    fn hidden(&self) -> u64 {
        self.view.hidden
    }

    fn bytes(&self) -> u64 {
        self.view.dtype.bytes()
    }

    fn starts(&self, base: u64) -> Vec<i128> {
        let RowsView { rows, stride, .. } = self.view;
        let bytes = i128::from(self.bytes());
        let start = i128::from(self.view.address) - i128::from(base);
        let row = |row: u64| {
            let offset = match self.view.groups {
                Some(groups) if groups.rows > 0 => {
                    let (group, within) = (row / groups.rows, row % groups.rows);
                    i128::from(group) * i128::from(groups.stride)
                        + i128::from(within) * i128::from(stride)
                }
                _ => i128::from(row) * i128::from(stride),
            };
            start + offset * bytes
        };
        (0..rows).map(row).collect()
    }
}

/// A call.
pub enum Call {
    Forward(ForwardArgs),
    Backward(BackwardArgs),
}

impl judge::Call for Call {
    type Operator = RmsNorm;
    type Argument = Argument;

    fn operator(u: &mut Unstructured<'_>) -> Result<cake_rmsnorm::Result<RmsNorm>> {
        operator(u)
    }

    fn draw(u: &mut Unstructured<'_>, op: &RmsNorm, base: u64) -> Result<Self> {
        call(u, op, base)
    }

    fn account(&self, op: &RmsNorm, base: u64) -> Verdict {
        if self.arguments().iter().any(|it| it.view.groups.is_some()) {
            return Verdict::Unsure;
        }
        account(op, self, base).map_or(Verdict::Wrong, |shares| Verdict::Right { shares })
    }

    fn arguments(&self) -> Vec<Argument> {
        let matrix = |name, view: Option<RowsView>| view.map(|view| Argument::new(name, view));
        let vector = |name, view: Option<VectorView>| view.map(|view| Argument::vector(name, view));
        match self {
            Call::Forward(args) => [
                matrix(Name::X, Some(args.x)),
                matrix(Name::Residual, args.residual),
                vector(Name::W, args.w),
                matrix(Name::H, args.h),
                matrix(Name::Y, Some(args.y)),
                vector(Name::Rstd, args.rstd).map(Argument::output),
            ]
            .into_iter()
            .flatten()
            .collect(),
            Call::Backward(args) => {
                let workspace = VectorView::f32(args.workspace.address, args.workspace.bytes / 4);
                [
                    matrix(Name::Dy, Some(args.dy)),
                    matrix(Name::X, Some(args.x)),
                    matrix(Name::Dh, args.dh),
                    vector(Name::W, args.w),
                    vector(Name::Rstd, args.rstd),
                    matrix(Name::Dx, args.dx),
                    vector(Name::Dw, args.dw.map(|dw| dw.dw)),
                    vector(Name::DwBf16, args.dw.and_then(|dw| dw.bf16)),
                    vector(Name::Workspace, Some(workspace)).map(|it| Argument {
                        alignment: 16,
                        ..it
                    }),
                ]
                .into_iter()
                .flatten()
                .collect()
            }
        }
    }

    unsafe fn run(&self, backend: &dyn Backend, op: &RmsNorm) -> cake_rmsnorm::Result<()> {
        // SAFETY: the caller's obligations.
        unsafe {
            match self {
                Call::Forward(args) => backend.forward(op, args),
                Call::Backward(args) => backend.backward(op, args),
            }
        }
    }

    fn packed(&self, place: impl Fn(Name) -> u64) -> Call {
        let matrix = |name, view: RowsView| {
            RowsView::packed(place(name), view.rows, view.hidden).with_dtype(view.dtype)
        };
        let vector = |name, view: VectorView| VectorView {
            address: place(name),
            ..view
        };
        match *self {
            Call::Forward(args) => Call::Forward(ForwardArgs {
                x: matrix(Name::X, args.x),
                residual: args.residual.map(|view| matrix(Name::Residual, view)),
                w: args.w.map(|view| vector(Name::W, view)),
                h: args.h.map(|view| matrix(Name::H, view)),
                y: matrix(Name::Y, args.y),
                rstd: args.rstd.map(|view| vector(Name::Rstd, view)),
            }),
            Call::Backward(args) => Call::Backward(BackwardArgs {
                dy: matrix(Name::Dy, args.dy),
                x: matrix(Name::X, args.x),
                dh: args.dh.map(|view| matrix(Name::Dh, view)),
                w: args.w.map(|view| vector(Name::W, view)),
                rstd: args.rstd.map(|view| vector(Name::Rstd, view)),
                dx: args.dx.map(|view| matrix(Name::Dx, view)),
                dw: args.dw.map(|dw| WeightGradient {
                    dw: vector(Name::Dw, dw.dw),
                    update: dw.update,
                    bf16: dw.bf16.map(|view| vector(Name::DwBf16, view)),
                }),
                workspace: Workspace {
                    address: 0,
                    bytes: 0,
                },
            }),
        }
    }
}

/// Whether the account finds nothing wrong with a call whose memory is the arena's and whose rows
/// make no groups. Whether an output lies in the place of an input, then.
fn account(op: &RmsNorm, call: &Call, base: u64) -> Option<bool> {
    let arguments = call.arguments();
    let rows = arguments[0].view.rows;
    let has = |name| arguments.iter().any(|it| it.name == name);
    let wanted = match call {
        Call::Forward(_) => has(Name::Residual) == has(Name::H),
        Call::Backward(_) => has(Name::Dx) || has(Name::Dw),
    };
    if !wanted || has(Name::W) != op.weight().is_some() || (has(Name::Dw) && !has(Name::W)) {
        return None;
    }
    for argument in &arguments {
        let Argument { name, view, .. } = *argument;
        let narrow = matches!(call, Call::Backward(BackwardArgs { dw: Some(dw), .. })
            if dw.update == Update::Overwrite && dw.bf16.is_none() && dw.dw.dtype == Dtype::Bf16);
        let shape = match name {
            Name::W => (op.weight()?, 1, op.hidden()),
            Name::Rstd => (Dtype::F32, 1, rows),
            Name::Dw if narrow => (Dtype::Bf16, 1, op.hidden()),
            Name::Dw => (Dtype::F32, 1, op.hidden()),
            Name::DwBf16 => (Dtype::Bf16, 1, op.hidden()),
            Name::Workspace => (Dtype::F32, 1, view.hidden),
            _ => (op.input(), rows, op.hidden()),
        };
        if (view.dtype, view.rows, view.hidden) != shape {
            return None;
        }
        if !argument.is_empty()
            && (view.address == 0 || !view.address.is_multiple_of(argument.alignment))
        {
            return None;
        }
        let matrix = matches!(name, Name::H | Name::Y | Name::Dx);
        if matrix && view.rows > 1 && view.stride < view.hidden as i64 {
            return None;
        }
    }
    let mut in_place = false;
    for (i, output) in arguments.iter().enumerate().filter(|(_, it)| it.output) {
        let places = output.places(base);
        let set: HashSet<usize> = places.iter().copied().collect();
        for (j, other) in arguments.iter().enumerate() {
            if i == j || (other.output && j < i) {
                continue;
            }
            let others = other.places(base);
            if !others.iter().any(|place| set.contains(place)) {
                continue;
            }
            let pair = matches!(
                (output.name, other.name),
                (Name::Y | Name::H, Name::X | Name::Residual)
                    | (Name::Dx, Name::Dy | Name::X | Name::Dh)
            );
            if !(pair && places == others) {
                return None;
            }
            in_place = true;
        }
    }
    Some(in_place)
}

fn operator(u: &mut Unstructured<'_>) -> Result<cake_rmsnorm::Result<RmsNorm>> {
    let hidden = match u.int_in_range(0..=15)? {
        0 => u.arbitrary()?,
        1 => *u.choose(&[0, 65_536, 65_537])?,
        2..=5 => 8 * u.int_in_range(1..=6)?,
        _ => u.int_in_range(1..=40)?,
    };
    let eps = match u.int_in_range(0..=9)? {
        0 => u.arbitrary()?,
        1 => 0.0,
        _ => 1e-5,
    };
    let offset = match u.int_in_range(0..=9)? {
        0 => u.arbitrary()?,
        1..=3 => 1.0,
        _ => 0.0,
    };
    let builder = RmsNorm::builder(hidden)
        .input(dtype(u)?)
        .eps(eps)
        .weight_offset(offset);
    Ok(if u.ratio(1, 6)? {
        builder.no_weight().weight_offset(0.0).build()
    } else {
        builder.weight(dtype(u)?).build()
    })
}

fn dtype(u: &mut Unstructured<'_>) -> Result<Dtype> {
    Ok(*u.choose(&[Dtype::Bf16, Dtype::F16, Dtype::F32])?)
}

/// Draws views: mostly such as fit, each in a part of the arena of its own.
struct Views<'a, 'b> {
    u: &'a mut Unstructured<'b>,
    base: u64,
    next: u64,
    rows: u64,
    group: u64,
}

impl Views<'_, '_> {
    /// Parts of the arena that arguments get, in bytes.
    const PART: u64 = ARENA as u64 / 10;

    fn odd(&mut self) -> Result<bool> {
        self.u.ratio(1, 40)
    }

    fn address(&mut self, bytes: u64) -> Result<u64> {
        self.next += 1;
        let own = self.base + (self.next - 1) % 10 * Self::PART / 16 * 16;
        Ok(match self.u.int_in_range(0..=39)? {
            0 => self.u.arbitrary()?,
            1 => 0,
            2 => own + 1,
            // Anywhere in the arena, where others may be.
            3 | 4 => self.base + self.u.int_in_range(0..=ARENA as u64 / bytes)? * bytes,
            // Where another one is.
            5 | 6 => self.base + self.u.int_in_range(0..=9)? * Self::PART / 16 * 16,
            7..=14 => own + bytes * self.u.int_in_range(0..=16)?,
            _ => own,
        })
    }

    fn matrix(&mut self, op: &RmsNorm) -> Result<RowsView> {
        let dtype = if self.odd()? {
            dtype(self.u)?
        } else {
            op.input()
        };
        let hidden = if self.odd()? {
            self.u.arbitrary()?
        } else {
            op.hidden()
        };
        let rows = if self.odd()? {
            self.u.arbitrary()?
        } else {
            self.rows
        };
        let address = self.address(dtype.bytes())?;
        let width = i64::try_from(hidden).unwrap_or(i64::MAX);
        let stride = match self.u.int_in_range(0..=15)? {
            0 => self.u.arbitrary()?,
            1 => self.u.int_in_range(-60..=60)?,
            2 => 0,
            3..=6 => width.saturating_add(self.u.int_in_range(0..=9)?),
            _ => width,
        };
        let view = RowsView::packed(address, rows, hidden)
            .with_dtype(dtype)
            .with_stride(stride);
        if self.group == 0 || self.u.ratio(1, 3)? {
            return Ok(view);
        }
        let group = if self.odd()? {
            self.u.arbitrary()?
        } else {
            self.group
        };
        let whole = stride.saturating_mul(i64::try_from(group).unwrap_or(i64::MAX));
        let distance = match self.u.int_in_range(0..=7)? {
            0 => self.u.arbitrary()?,
            1 => self.u.int_in_range(-200..=200)?,
            2..=4 => whole.saturating_add(self.u.int_in_range(0..=20)?),
            _ => whole,
        };
        Ok(view.with_groups(group, distance))
    }

    fn vector(&mut self, found: Dtype, len: u64) -> Result<VectorView> {
        let dtype = if self.odd()? { dtype(self.u)? } else { found };
        Ok(VectorView {
            address: self.address(dtype.bytes())?,
            dtype,
            len: if self.odd()? {
                self.u.arbitrary()?
            } else {
                len
            },
        })
    }

    fn optional<T>(&mut self, draw: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        Ok(if self.u.ratio(1, 2)? {
            Some(draw(self)?)
        } else {
            None
        })
    }

    fn weight(&mut self, op: &RmsNorm) -> Result<Option<VectorView>> {
        let there = op.weight().is_some() != self.odd()?;
        let dtype = op.weight().unwrap_or(Dtype::F32);
        there.then(|| self.vector(dtype, op.hidden())).transpose()
    }

    /// A view, or one in the place of another.
    fn output(&mut self, op: &RmsNorm, inputs: &[Option<RowsView>]) -> Result<RowsView> {
        let place = match self.u.int_in_range(0..=5)? {
            0 => self.u.choose(inputs)?.to_owned(),
            _ => None,
        };
        place.map_or_else(|| self.matrix(op), Ok)
    }
}

fn call(u: &mut Unstructured<'_>, op: &RmsNorm, base: u64) -> Result<Call> {
    let rows = match u.int_in_range(0..=19)? {
        0 => u.arbitrary()?,
        1 => 0,
        _ => u.int_in_range(1..=8)?,
    };
    let group = if u.ratio(1, 5)? {
        u.int_in_range(1..=4)?
    } else {
        0
    };
    let backward: bool = u.arbitrary()?;
    let residual = u.arbitrary::<bool>()?;
    let views = &mut Views {
        u,
        base,
        next: 0,
        rows,
        group,
    };
    let x = views.matrix(op)?;
    let second = if residual != views.odd()? {
        Some(views.matrix(op)?)
    } else {
        None
    };
    let w = views.weight(op)?;
    let rstd = views.optional(|views| views.vector(Dtype::F32, rows))?;
    if !backward {
        let y = views.output(op, &[Some(x), second])?;
        let h = if residual {
            Some(views.output(op, &[Some(x), second])?)
        } else {
            None
        };
        return Ok(Call::Forward(ForwardArgs {
            x,
            residual: second,
            w,
            h,
            y,
            rstd,
        }));
    }
    let dy = views.matrix(op)?;
    let dx = views.optional(|views| views.output(op, &[Some(x), second, Some(dy)]))?;
    let wants_dw = w.is_some() != views.odd()?;
    let dw = if wants_dw && (dx.is_none() || views.u.arbitrary()?) {
        Some(weight_gradient(views, op)?)
    } else {
        None
    };
    let workspace = match views.u.int_in_range(0..=5)? {
        0 => Workspace {
            address: views.address(16)?,
            bytes: views.u.int_in_range(0..=900)?,
        },
        _ => Workspace {
            address: 0,
            bytes: 0,
        },
    };
    Ok(Call::Backward(BackwardArgs {
        dy,
        x,
        dh: second,
        w,
        rstd,
        dx,
        dw,
        workspace,
    }))
}

fn weight_gradient(views: &mut Views<'_, '_>, op: &RmsNorm) -> Result<WeightGradient> {
    let update = if views.u.arbitrary()? {
        Update::Accumulate
    } else {
        Update::Overwrite
    };
    let narrow = views.u.ratio(1, 4)?;
    let dtype = if narrow { Dtype::Bf16 } else { Dtype::F32 };
    let dw = views.vector(dtype, op.hidden())?;
    let bf16 = if !narrow && views.u.arbitrary()? {
        Some(views.vector(Dtype::Bf16, op.hidden())?)
    } else {
        None
    };
    Ok(WeightGradient { dw, update, bf16 })
}
