//! Nobody but the caller knows that the addresses are good.
use cake_rmsnorm::backend::{Backend, cpu::Cpu};
use cake_rmsnorm::{ForwardArgs, RmsNorm};

fn run(op: &RmsNorm, args: &ForwardArgs) {
    Cpu.forward(op, args).unwrap();
}

fn main() {
    let _ = run;
}
