//! `nuncio supported`: which fields of Envoy's messages this build honours.

use std::io::Write;
use std::process::ExitCode;

use nuncio_api::Support;

#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// A message, by its full name, its type URL or the last word of its name; without one, all messages are listed
    pub message: Option<String>,
}

pub fn run(arguments: &Arguments, support: &Support) -> ExitCode {
    let mut text = support.list(arguments.message.as_deref()).join("\n");
    text.push('\n');
    // A reader that has enough, as `head` does, is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
