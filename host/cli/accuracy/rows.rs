//! y, rstd and dx of every row of a case: rows that are equal have the golden bits of one of them.

use crate::cli::device::{Buffer, Device};
use crate::cli::error::Result;
use crate::cli::operands::Operands;
use cake_rmsnorm::RmsNorm;
use cake_rmsnorm::golden::{self, Forward};
use cake_rmsnorm::inputs::pool::{BLOCK_ROWS, BLOCKS, PAIRS, Pool};
use half::bf16;

/// What the golden implementation gives for the rows of a pool.
pub struct Rows<'a> {
    pub device: &'a dyn Device,
    pub op: RmsNorm,
    pub pool: &'a Pool,
    /// T.
    pub rows: usize,
}

impl Rows<'_> {
    /// Compares the outputs of a forward and a backward over the pool's inputs; what differs.
    pub fn compare(&self, operands: &Operands) -> Result<Vec<&'static str>> {
        let pool = self.pool;
        let w = pool.w.as_golden();
        let forward = golden::forward_slices(&self.op, &pool.x, None, w)?;
        let blocks = self.rows.div_ceil(BLOCK_ROWS);
        let mut different = Vec::new();
        if !self.equal(&*operands.y, &forward.y, &Pool::x_blocks(blocks))? {
            different.push("y");
        }
        let mut rstd = vec![0f32; self.rows];
        operands.rstd.read(bytemuck::cast_slice_mut(&mut rstd))?;
        let expected = (0..self.rows).map(|row| {
            let block = row / BLOCK_ROWS % BLOCKS;
            forward.rstd[block * BLOCK_ROWS + row % BLOCK_ROWS]
        });
        let bits = |rstd: &f32| rstd.to_bits();
        if !expected
            .map(|rstd| rstd.to_bits())
            .eq(rstd.iter().map(bits))
        {
            different.push("rstd");
        }
        let dx = self.dx(&forward, blocks.min(PAIRS))?;
        let order: Vec<u32> = (0..blocks).map(|block| (block % PAIRS) as u32).collect();
        if !self.equal(&*operands.dx, &dx, &order)? {
            different.push("dx");
        }
        Ok(different)
    }

    /// dx of the first `count` blocks of rows, a pool's worth at a time.
    fn dx(&self, forward: &Forward, count: usize) -> Result<Vec<bf16>> {
        let (pool, w) = (self.pool, self.pool.w.as_golden());
        let (xs, dys) = (Pool::x_blocks(count), Pool::dy_blocks(count));
        let mut dx = Vec::with_capacity(count * BLOCK_ROWS * pool.hidden);
        for (xs, dys) in xs.chunks(BLOCKS).zip(dys.chunks(BLOCKS)) {
            let x: Vec<&[bf16]> = xs.iter().map(|&x| pool.x_rows(x as usize)).collect();
            let dy: Vec<&[bf16]> = dys.iter().map(|&dy| pool.dy_rows(dy as usize)).collect();
            let rstd = xs
                .iter()
                .map(|&x| &forward.rstd[x as usize * BLOCK_ROWS..][..BLOCK_ROWS]);
            let rstd: Vec<&[f32]> = rstd.collect();
            let (x, dy, rstd) = (x.concat(), dy.concat(), rstd.concat());
            dx.extend(golden::backward_slices(&self.op, &dy, &x, None, w, &rstd)?.dx);
        }
        Ok(dx)
    }

    /// Whether an output's rows are these blocks in this order.
    fn equal(&self, output: &dyn Buffer, blocks: &[bf16], order: &[u32]) -> Result<bool> {
        let row_bytes = self.pool.hidden * size_of::<bf16>();
        let total = self.rows * row_bytes;
        let mut expected = self.device.alloc("expected rows", total)?;
        let blocks = bytemuck::cast_slice(blocks);
        expected.write_blocks(blocks, BLOCK_ROWS * row_bytes, order, total)?;
        self.device.equal(output, &*expected, total)
    }
}
