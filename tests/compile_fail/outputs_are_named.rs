//! Leaving an output out is said: there is no default.
use cake_rmsnorm::{BackwardArgs, RowsView, VectorView, Workspace};

fn main() {
    let view = RowsView::packed(256, 1, 8);
    let _ = BackwardArgs {
        dy: view,
        x: view,
        dh: None,
        w: Some(VectorView::f32(256, 8)),
        rstd: None,
        workspace: Workspace {
            address: 0,
            bytes: 0,
        },
    };
}
