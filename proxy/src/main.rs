//! The `nuncio` binary: what the command line asks for.

use std::process::ExitCode;

use nuncio::cli::{self, Request};
use nuncio::{extensions, logging, server};

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args_os()) {
        Ok(Request::Serve(options)) => options,
        Ok(Request::Command(command)) => return command.run(),
        Err(code) => return code,
    };
    let loggers = logging::init(&options.logging());
    for warning in &options.warnings {
        tracing::warn!(target: "main", "{warning}");
    }
    server::run(*options, loggers, extensions::standard())
}
