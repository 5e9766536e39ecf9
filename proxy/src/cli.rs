//! The command line: which command, and with what. Without a subcommand the proxy serves, as Envoy does.
//!
//! A subcommand is one file in `cli/` and one line in [`Command`]; it parses arguments and calls one function.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, error::ErrorKind};

use crate::server::options::{Arguments, Options};
use crate::{extensions, logging, server, version};

mod authz_server;
mod demo;
mod doctor;
mod iptables;
mod sds_server;
mod supported;

/// What the command line asks for.
pub enum Request {
    Serve(Box<Options>),
    Command(Command),
}

#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Answer ext_authz filters over gRPC: refuse some paths, let the rest pass with one more header
    AuthzServer(authz_server::Arguments),
    /// Run upstreams that register themselves and the proxy in front of them, and say what to try
    Demo(demo::Arguments),
    /// Walk the chain from ext_authz filters to their authorization services and say where it breaks
    Doctor(doctor::Arguments),
    /// Show, apply or remove the packet filter's rules that send a pod's connections through the proxy
    Iptables(iptables::Arguments),
    /// Serve the REST service discovery API (/v1/registration/…) that SDS clusters poll
    SdsServer(sds_server::Arguments),
    /// List what is implemented of Envoy's configuration
    Supported(supported::Arguments),
}

impl Command {
    pub fn run(self) -> ExitCode {
        match self {
            Command::AuthzServer(arguments) => authz_server::run(arguments),
            Command::Demo(arguments) => demo::run(&arguments),
            Command::Doctor(arguments) => doctor::run(&arguments),
            Command::Iptables(arguments) => iptables::run(arguments),
            Command::SdsServer(arguments) => sds_server::run(arguments),
            Command::Supported(arguments) => supported::run(&arguments, &extensions::standard().support),
        }
    }
}

#[derive(Parser, Debug)]
#[command(
    name = "nuncio",
    about = "An Envoy-compatible proxy",
    disable_version_flag = true,
    args_conflicts_with_subcommands = true
)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Does what the command line asks for, program name first, until it is done or somebody ends it.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let options = match parse(args) {
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

/// Reads the command line, program name first. `Err` says how to exit: everything that had to be said has been.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Request, ExitCode> {
    let line = command_line(args.skip(1)).map_err(|error| {
        // Envoy ends with 1 for a mistake where clap would say 2; a closed standard error changes nothing about that.
        let _ = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    })?;
    if let Some(command) = line.command {
        return Ok(Request::Command(command));
    }
    if line.arguments.version {
        println!("\nnuncio  version: {}\n", *version::FULL);
        return Err(ExitCode::SUCCESS);
    }
    if line.arguments.hot_restart_version {
        println!("{}", version::HOT_RESTART);
        return Err(ExitCode::SUCCESS);
    }
    match Options::new(line.arguments) {
        Ok(options) => Ok(Request::Serve(Box::new(options))),
        Err(error) => {
            eprintln!("{error}");
            Err(ExitCode::FAILURE)
        }
    }
}

fn command_line(args: impl Iterator<Item = OsString>) -> Result<CommandLine, clap::Error> {
    // Both spellings mean in Envoy that nothing after them counts.
    let args = args.take_while(|arg| arg != "--" && arg != "--ignore_rest");
    let matches = CommandLine::command().no_binary_name(true).try_get_matches_from(args)?;
    CommandLine::from_arg_matches(&matches)
}

/// The flags of a command line without subcommand.
#[cfg(test)]
pub(crate) fn arguments(args: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    command_line(args).map(|line| line.arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(line: &str) -> String {
        arguments(line.split_whitespace().map(Into::into)).unwrap_err().to_string()
    }

    #[test]
    fn every_flag_of_envoys_usage_text_is_known() {
        let flags = "stats-tag enable-core-dump socket-mode socket-path disable-extensions cpuset-threads enable-mutex-tracing \
                     disable-hot-restart mode parent-shutdown-time-s drain-strategy drain-time-s file-flush-min-size-kb \
                     file-flush-interval-msec service-zone service-node service-cluster hot-restart-version restart-epoch log-path \
                     enable-fine-grain-logging log-format-escaped log-format component-log-level log-level local-address-ip-version \
                     admin-address-path log-stacktrace-single-entry skip-deprecated-logs ignore-unknown-dynamic-fields \
                     reject-unknown-dynamic-fields allow-unknown-static-fields allow-unknown-fields config-yaml config-path concurrency \
                     base-id-path skip-hot-restart-parent-stats skip-hot-restart-on-no-parent use-dynamic-base-id base-id version help";
        let mut command = CommandLine::command();
        command.build();
        for flag in flags.split_whitespace() {
            assert!(command.get_arguments().any(|a| a.get_long() == Some(flag)), "{flag}");
        }
    }

    #[test]
    fn a_mistake_names_the_flag() {
        assert!(mistake("--bogus").contains("'--bogus'"));
        assert!(mistake("-c").contains("--config-path"));
        assert!(mistake("--concurrency x").contains("--concurrency"));
        assert!(mistake("-c a -c b").contains("--config-path"));
        assert!(mistake("foo").contains("foo"));
    }

    #[test]
    fn nothing_after_two_dashes_counts() {
        let a = arguments(["-c", "x", "--", "--bogus"].into_iter().map(Into::into)).unwrap();
        assert_eq!(a.config_path, "x");
        assert!(arguments(["--ignore_rest", "--bogus"].into_iter().map(Into::into)).is_ok());
    }
}
