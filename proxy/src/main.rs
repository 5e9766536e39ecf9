//! The `nuncio` binary: what the command line asks for.

use std::process::ExitCode;

fn main() -> ExitCode {
    nuncio::cli::run(std::env::args_os())
}
