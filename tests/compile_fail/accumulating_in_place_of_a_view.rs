//! Adding to dw is said, not meant by a type of view: a matrix is no weight gradient.
use cake_rmsnorm::{RowsView, WeightGradient};

fn main() {
    let _ = WeightGradient::accumulate(RowsView::packed(256, 1, 8));
}
