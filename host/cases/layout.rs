//! Where a matrix lies.

use super::Draw;
use crate::view::RowsView;

/// How far the rows of a matrix are from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// One follows the other.
    #[default]
    Packed,
    /// So many elements are between them.
    Gap(usize),
    /// So many elements are between them, and the last row comes first in memory.
    Reversed(usize),
    /// All rows are the same one.
    Same,
    /// Groups of rows, with elements between the groups.
    Grouped {
        /// Rows of a group.
        rows: usize,
        /// Elements between groups.
        gap: usize,
    },
}

/// Where a matrix lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Elements between a multiple of 16 bytes and the first element in memory.
    pub offset: usize,
    /// Distance of the rows.
    pub step: Step,
}

impl Layout {
    /// Any, with rows in groups of `group` if that is not 0; with `aligned`, such that rows may start at multiples of 16 bytes, if H is a multiple
    /// of 8. Only inputs may run backwards or repeat a row.
    pub(super) fn draw(draw: &mut Draw<'_>, group: usize, aligned: bool, input: bool) -> Self {
        let gap = if aligned {
            8 * draw.below(5)
        } else {
            draw.below(20)
        };
        let step = match draw.below(if input { 8 } else { 6 }) {
            0 if group > 0 => Step::Grouped { rows: group, gap },
            0..3 => Step::Packed,
            3..6 => Step::Gap(gap),
            6 => Step::Reversed(gap),
            _ => Step::Same,
        };
        let offset = if aligned { 0 } else { draw.below(8) };
        Self { offset, step }
    }

    /// The packed matrix `packed` of the same rows, laid so.
    pub(super) fn view(&self, packed: RowsView) -> RowsView {
        let hidden = packed.hidden as i64;
        match self.step {
            Step::Packed => packed,
            Step::Gap(gap) => packed.with_stride(hidden + gap as i64),
            Step::Reversed(gap) => packed.with_stride(-hidden - gap as i64),
            Step::Same => packed.with_stride(0),
            Step::Grouped { rows, gap } => {
                packed.with_groups(rows as u64, rows as i64 * hidden + gap as i64)
            }
        }
    }

    /// Where row `row` of `rows` starts, from the first element in memory on.
    pub(super) fn start(&self, row: usize, rows: usize, hidden: usize) -> usize {
        match self.step {
            Step::Packed => row * hidden,
            Step::Gap(gap) => row * (hidden + gap),
            Step::Reversed(gap) => rows.saturating_sub(row + 1) * (hidden + gap),
            Step::Same => 0,
            Step::Grouped { rows: group, gap } => row * hidden + row / group * gap,
        }
    }

    /// Elements from the first to the last in memory.
    pub(super) fn extent(&self, rows: usize, hidden: usize) -> usize {
        if rows == 0 {
            return 0;
        }
        let last = self.start(rows - 1, rows, hidden);
        self.start(0, rows, hidden).max(last) + hidden
    }
}
