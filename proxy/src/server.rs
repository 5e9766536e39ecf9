//! The server: what it is asked to do, and the threads that do it.
//!
//! - [`options`]: the command line
//! - [`bootstrap`]: a configuration, from its text to the objects it describes
//! - [`main_thread`]: the one writer of everything shared, and the order of start and end
//! - [`admin`]: the admin interface's place in it
//! - [`worker`]: a thread that serves connections
//! - [`inbox`]: the one list of what crosses threads
//! - [`signals`]: what the operator tells a process
//! - [`overload`]: resources that may run out, and what follows
//! - [`process_stats`]: the statistics under `server.`
//!
//! ```text
//! Options ──► bootstrap::load ──► Assembly ──► main_thread::run ──┬─ WorkerCommand ─► wrk:0, wrk:1, …
//!                                                                 └◄─ MainEvent ─────┘
//! ```

pub mod admin;
pub mod bootstrap;
pub mod inbox;
pub mod main_thread;
pub mod options;
pub mod overload;
pub mod process_stats;
pub mod runtime;
pub mod signals;
pub mod worker;

use std::process::ExitCode;
use std::sync::Arc;

pub use options::Options;

use crate::extensions::Extensions;
use crate::logging::Loggers;
use options::Mode;

/// Does what the command line asks for, until it is done or somebody ends it.
pub fn run(options: Options, loggers: Arc<Loggers>, extensions: Extensions) -> ExitCode {
    let mode = options.mode;
    let assembly = match bootstrap::check(options, extensions) {
        Ok(assembly) => assembly,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            return ExitCode::FAILURE;
        }
    };
    match mode {
        Mode::Validate => {
            assembly.warnings.iter().for_each(|warning| eprintln!("{warning}"));
            println!("configuration '{}' OK", assembly.options.config_path);
            ExitCode::SUCCESS
        }
        Mode::Serve | Mode::InitOnly => match main_thread::run(assembly, loggers, signals::ended(), |_| {}) {
            Ok(_) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
    }
}
