//! Errors may become more: a match has an arm for those to come.
use cake_rmsnorm::{Argument, Error};

fn name(argument: Argument) -> &'static str {
    match argument {
        Argument::X => "x",
        Argument::Residual => "residual",
        Argument::W => "w",
        Argument::H => "h",
        Argument::Y => "y",
        Argument::Rstd => "rstd",
        Argument::Dy => "dy",
        Argument::Dh => "dh",
        Argument::Dx => "dx",
        Argument::Dw => "dw",
        Argument::DwBf16 => "dw_bf16",
        Argument::Workspace => "workspace",
    }
}

fn main() {
    let error = Error::NoGradient;
    match error {
        Error::NoGradient => {}
    }
    let _ = name(Argument::X);
}
