//! `nuncio iptables`: the packet filter's rules that send a pod's connections through the proxy: shown, applied, removed.
//!
//! Works in the network namespace it is run in; an init container or `ip netns exec` chooses it. Each family's table is
//! changed in one transaction, so there is no moment with half of the rules.

mod rules;

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use nuncio_core::net::CidrRange;

use crate::net::capabilities::has_net_admin;
use rules::{Family, Interception};

#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("action").required(true).args(["dry_run", "apply", "clean"])))]
pub struct Arguments {
    /// Show the rules and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Put the rules in place of those of an earlier run
    #[arg(long)]
    apply: bool,
    /// Remove what an earlier run put there
    #[arg(long)]
    clean: bool,
    /// Where connections from this namespace go
    #[arg(long, default_value_t = 15001)]
    outbound_port: u16,
    /// Where connections to this namespace go
    #[arg(long, default_value_t = 15006)]
    inbound_port: u16,
    /// User of the proxy, whose own connections are left alone; may be repeated
    #[arg(long = "uid", default_value = "1337")]
    uids: Vec<u32>,
    /// Group of the proxy; may be repeated
    #[arg(long = "gid")]
    gids: Vec<u32>,
    /// Only connections to these ports, comma-separated; all without it
    #[arg(long, value_delimiter = ',')]
    inbound_ports: Option<Vec<u16>>,
    /// Not connections to these ports: admin, health and metrics of the proxy
    #[arg(long, value_delimiter = ',', default_value = "15000,15021,15090")]
    exclude_inbound_ports: Vec<u16>,
    /// Only connections to these ports, comma-separated; all without it
    #[arg(long, value_delimiter = ',')]
    outbound_ports: Option<Vec<u16>>,
    /// Not connections to these ports
    #[arg(long, value_delimiter = ',')]
    exclude_outbound_ports: Vec<u16>,
    /// Only connections to these ranges, e.g. 10.0.0.0/8,fd00::/8; to all addresses without it
    #[arg(long, value_delimiter = ',', value_parser = range)]
    outbound_ranges: Option<Vec<CidrRange>>,
    /// Not connections to these ranges
    #[arg(long, value_delimiter = ',', value_parser = range)]
    exclude_outbound_ranges: Vec<CidrRange>,
    /// Leave the IPv6 table alone
    #[arg(long)]
    no_ipv6: bool,
}

fn range(text: &str) -> Result<CidrRange, String> {
    let (address, len) = text.split_once('/').unwrap_or((text, ""));
    let address: std::net::IpAddr = address.parse().map_err(|_| format!("'{address}' is no IP address"))?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let len = if len.is_empty() { Some(whole) } else { len.parse().ok().filter(|len| *len <= whole) };
    len.map(|len| CidrRange::new(address, len)).ok_or_else(|| format!("'{text}' is no range: /0 to /{whole}"))
}

pub fn run(arguments: Arguments) -> ExitCode {
    match act(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("nuncio iptables: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn act(arguments: &Arguments) -> Result<(), String> {
    let rules = interception(arguments);
    let families = if arguments.no_ipv6 { &[Family::V4][..] } else { &[Family::V4, Family::V6] };
    if arguments.dry_run {
        let shown = families.iter().map(|f| format!("# {}-restore --noflush\n{}", program(*f), rules.apply(*f, "")));
        // A reader that has enough is no failure.
        let _ = std::io::stdout().write_all(shown.collect::<String>().as_bytes());
        return Ok(());
    }
    if !has_net_admin() {
        return Err("changing the packet filter needs root, or CAP_NET_ADMIN; --dry-run shows the rules".to_owned());
    }
    for family in families {
        let saved = match output(&format!("{}-save", program(*family)), &["-t", "nat"], "") {
            Ok(saved) => saved,
            // A kernel without IPv6 has no such connections either.
            Err(reason) if *family == Family::V6 => {
                eprintln!("nuncio iptables: IPv6 is left alone: {reason}");
                continue;
            }
            Err(reason) => return Err(reason),
        };
        let change = if arguments.apply { Some(rules.apply(*family, &saved)) } else { rules::clean(&saved) };
        if let Some(change) = change {
            output(&format!("{}-restore", program(*family)), &["--noflush", "-w"], &change)?;
        }
    }
    Ok(())
}

fn interception(arguments: &Arguments) -> Interception {
    Interception {
        outbound_port: arguments.outbound_port,
        inbound_port: arguments.inbound_port,
        uids: arguments.uids.clone(),
        gids: arguments.gids.clone(),
        inbound_ports: arguments.inbound_ports.clone(),
        exclude_inbound_ports: arguments.exclude_inbound_ports.clone(),
        outbound_ports: arguments.outbound_ports.clone(),
        exclude_outbound_ports: arguments.exclude_outbound_ports.clone(),
        outbound_ranges: arguments.outbound_ranges.clone(),
        exclude_outbound_ranges: arguments.exclude_outbound_ranges.clone(),
    }
}

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// What a program prints. Its failure is told in its own words.
fn output(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => format!("'{program}' is not installed (package iptables)"),
            _ => format!("cannot run '{program}': {e}"),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read says why by itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().map_err(|e| format!("cannot run '{program}': {e}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_with_and_without_length() {
        assert_eq!(range("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(range("10.1.2.3").unwrap().to_string(), "10.1.2.3/32");
        assert_eq!(range("fd00::/8").unwrap().to_string(), "fd00::/8");
        assert!(range("10.0.0.0/33").unwrap_err().contains("/0 to /32"));
        assert!(range("ten/8").is_err());
    }
}
