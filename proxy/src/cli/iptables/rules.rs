//! The packet filter's rules of a sidecar, as `iptables-restore` reads them: pure text, so that what is shown is what is
//! applied.
//!
//! Everything stands in chains of our own, which the table's chains only jump to; so a table that has them can be told
//! from one that has not, and they can be taken out without touching what others put there.

use std::fmt::Write;

use nuncio_core::net::CidrRange;

pub const INBOUND: &str = "NUNCIO_INBOUND";
pub const OUTPUT: &str = "NUNCIO_OUTPUT";
const TO_INBOUND: &str = "NUNCIO_TO_INBOUND";
const TO_OUTBOUND: &str = "NUNCIO_TO_OUTBOUND";

/// What the table's own chains jump to ours with.
const JUMPS: [(&str, &str); 2] = [("PREROUTING", INBOUND), ("OUTPUT", OUTPUT)];

/// Ours, those that jump before those that are jumped to.
const CHAINS: [&str; 4] = [INBOUND, OUTPUT, TO_INBOUND, TO_OUTBOUND];

/// Which connections meet the proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interception {
    pub outbound_port: u16,
    pub inbound_port: u16,
    /// The proxy's own: its connections are left alone.
    pub uids: Vec<u32>,
    pub gids: Vec<u32>,
    /// `None`: all ports.
    pub inbound_ports: Option<Vec<u16>>,
    pub exclude_inbound_ports: Vec<u16>,
    /// `None`: all.
    pub outbound_ports: Option<Vec<u16>>,
    pub exclude_outbound_ports: Vec<u16>,
    /// `None`: all addresses.
    pub outbound_ranges: Option<Vec<CidrRange>>,
    pub exclude_outbound_ranges: Vec<CidrRange>,
}

/// Which of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Interception {
    /// The whole change to a `nat` table, of which `saved` is what it is now (`iptables-save`). Applied twice it leaves
    /// the table as once.
    pub fn apply(&self, family: Family, saved: &str) -> String {
        let mut out = String::from("*nat\n");
        // A chain that is declared is emptied.
        CHAINS.iter().for_each(|chain| line(&mut out, format_args!(":{chain} - [0:0]")));
        existing_jumps(saved).for_each(|jump| line(&mut out, format_args!("-D {jump}")));
        self.targets(&mut out);
        self.inbound(&mut out);
        self.output(family, &mut out);
        JUMPS.iter().for_each(|(from, to)| line(&mut out, format_args!("-A {from} -p tcp -j {to}")));
        out.push_str("COMMIT\n");
        out
    }

    fn targets(&self, out: &mut String) {
        let redirect = |chain, port| format!("-A {chain} -p tcp -j REDIRECT --to-ports {port}");
        line(out, format_args!("{}", redirect(TO_INBOUND, self.inbound_port)));
        line(out, format_args!("{}", redirect(TO_OUTBOUND, self.outbound_port)));
    }

    fn inbound(&self, out: &mut String) {
        for port in &self.exclude_inbound_ports {
            line(out, format_args!("-A {INBOUND} -p tcp --dport {port} -j RETURN"));
        }
        match &self.inbound_ports {
            None => line(out, format_args!("-A {INBOUND} -p tcp -j {TO_INBOUND}")),
            Some(ports) => ports
                .iter()
                .for_each(|port| line(out, format_args!("-A {INBOUND} -p tcp --dport {port} -j {TO_INBOUND}"))),
        }
    }

    fn output(&self, family: Family, out: &mut String) {
        for uid in &self.uids {
            line(out, format_args!("-A {OUTPUT} -m owner --uid-owner {uid} -j RETURN"));
        }
        for gid in &self.gids {
            line(out, format_args!("-A {OUTPUT} -m owner --gid-owner {gid} -j RETURN"));
        }
        // What stays in this namespace does not leave the pod.
        line(out, format_args!("-A {OUTPUT} -o lo -j RETURN"));
        // Names must be resolved whatever becomes of the proxy; over UDP they never come here.
        line(out, format_args!("-A {OUTPUT} -p tcp --dport 53 -j RETURN"));
        for port in &self.exclude_outbound_ports {
            line(out, format_args!("-A {OUTPUT} -p tcp --dport {port} -j RETURN"));
        }
        for range in of(family, &self.exclude_outbound_ranges) {
            line(out, format_args!("-A {OUTPUT} -d {range} -j RETURN"));
        }
        let ranges: Vec<String> = match &self.outbound_ranges {
            None => vec![String::new()],
            Some(ranges) => of(family, ranges).map(|range| format!(" -d {range}")).collect(),
        };
        let ports: Vec<String> = match &self.outbound_ports {
            None => vec![String::new()],
            Some(ports) => ports.iter().map(|port| format!(" --dport {port}")).collect(),
        };
        for range in &ranges {
            for port in &ports {
                line(out, format_args!("-A {OUTPUT}{range} -p tcp{port} -j {TO_OUTBOUND}"));
            }
        }
    }
}

/// Takes out of the table `saved` whatever is ours. `None`: nothing is.
pub fn clean(saved: &str) -> Option<String> {
    let mut out = String::from("*nat\n");
    existing_jumps(saved).for_each(|jump| line(&mut out, format_args!("-D {jump}")));
    let there: Vec<_> = CHAINS.iter().filter(|chain| declares(saved, chain)).collect();
    there.iter().for_each(|chain| line(&mut out, format_args!("-F {chain}")));
    there.iter().for_each(|chain| line(&mut out, format_args!("-X {chain}")));
    out.push_str("COMMIT\n");
    (out != "*nat\nCOMMIT\n").then_some(out)
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // A string takes whatever is written.
    let _ = writeln!(out, "{text}");
}

fn of(family: Family, ranges: &[CidrRange]) -> impl Iterator<Item = &CidrRange> {
    ranges.iter().filter(move |range| range.address().is_ipv4() == (family == Family::V4))
}

/// From chains that are not ours, as `-D` wants them.
fn existing_jumps(saved: &str) -> impl Iterator<Item = &str> {
    saved.lines().filter_map(|line| line.strip_prefix("-A ")).filter(|rule| {
        let from = rule.split(' ').next().unwrap_or_default();
        let to = rule.rsplit(' ').next().unwrap_or_default();
        !CHAINS.contains(&from) && [INBOUND, OUTPUT].contains(&to)
    })
}

fn declares(saved: &str, chain: &str) -> bool {
    saved.lines().any(|line| line.strip_prefix(':').is_some_and(|rest| rest.split(' ').next() == Some(chain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Interception {
        Interception {
            outbound_port: 15001,
            inbound_port: 15006,
            uids: vec![1337],
            gids: vec![1337],
            exclude_inbound_ports: vec![15021],
            ..Interception::default()
        }
    }

    #[test]
    fn the_proxys_own_connections_and_names_are_left_alone_and_the_rest_meets_it() {
        let expected = "\
*nat
:NUNCIO_INBOUND - [0:0]
:NUNCIO_OUTPUT - [0:0]
:NUNCIO_TO_INBOUND - [0:0]
:NUNCIO_TO_OUTBOUND - [0:0]
-A NUNCIO_TO_INBOUND -p tcp -j REDIRECT --to-ports 15006
-A NUNCIO_TO_OUTBOUND -p tcp -j REDIRECT --to-ports 15001
-A NUNCIO_INBOUND -p tcp --dport 15021 -j RETURN
-A NUNCIO_INBOUND -p tcp -j NUNCIO_TO_INBOUND
-A NUNCIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A NUNCIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A NUNCIO_OUTPUT -o lo -j RETURN
-A NUNCIO_OUTPUT -p tcp --dport 53 -j RETURN
-A NUNCIO_OUTPUT -p tcp -j NUNCIO_TO_OUTBOUND
-A PREROUTING -p tcp -j NUNCIO_INBOUND
-A OUTPUT -p tcp -j NUNCIO_OUTPUT
COMMIT
";
        assert_eq!(plain().apply(Family::V4, ""), expected);
    }

    #[test]
    fn ports_and_ranges_narrow_what_is_taken_each_family_its_own() {
        let range = |text: &str, len| CidrRange::new(text.parse().unwrap(), len);
        let rules = Interception {
            inbound_ports: Some(vec![8080]),
            outbound_ports: Some(vec![80, 443]),
            exclude_outbound_ports: vec![3306],
            outbound_ranges: Some(vec![range("10.0.0.0", 8), range("fd00::", 8)]),
            exclude_outbound_ranges: vec![range("10.9.0.0", 16)],
            ..plain()
        };
        let v4 = rules.apply(Family::V4, "");
        for wanted in [
            "-A NUNCIO_INBOUND -p tcp --dport 8080 -j NUNCIO_TO_INBOUND\n",
            "-A NUNCIO_OUTPUT -p tcp --dport 3306 -j RETURN\n",
            "-A NUNCIO_OUTPUT -d 10.9.0.0/16 -j RETURN\n",
            "-A NUNCIO_OUTPUT -d 10.0.0.0/8 -p tcp --dport 443 -j NUNCIO_TO_OUTBOUND\n",
        ] {
            assert!(v4.contains(wanted), "{wanted}{v4}");
        }
        let v6 = rules.apply(Family::V6, "");
        assert!(
            v6.contains("-A NUNCIO_OUTPUT -d fd00::/8 -p tcp --dport 80 -j NUNCIO_TO_OUTBOUND\n")
                && !v6.contains("10.")
        );
    }

    const SAVED: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:NUNCIO_INBOUND - [0:0]\n:NUNCIO_OUTPUT - [0:0]\n\
                         :OTHER - [0:0]\n-A PREROUTING -p tcp -j NUNCIO_INBOUND\n-A OUTPUT -p tcp -j OTHER\n\
                         -A OUTPUT -p tcp -j NUNCIO_OUTPUT\n-A NUNCIO_INBOUND -p tcp -j NUNCIO_TO_INBOUND\nCOMMIT\n";

    #[test]
    fn applying_again_replaces_the_jumps_that_are_there() {
        let again = plain().apply(Family::V4, SAVED);
        let count = |text: &str| again.lines().filter(|line| line.starts_with(text)).count();
        assert_eq!(
            (count("-D PREROUTING -p tcp -j NUNCIO_INBOUND"), count("-D OUTPUT -p tcp -j NUNCIO_OUTPUT")),
            (1, 1)
        );
        assert_eq!((count("-D"), count("-A PREROUTING"), count("-A OUTPUT")), (2, 1, 1));
    }

    #[test]
    fn cleaning_takes_out_what_is_ours_and_nothing_else() {
        let expected = "*nat\n-D PREROUTING -p tcp -j NUNCIO_INBOUND\n-D OUTPUT -p tcp -j NUNCIO_OUTPUT\n\
                        -F NUNCIO_INBOUND\n-F NUNCIO_OUTPUT\n-X NUNCIO_INBOUND\n-X NUNCIO_OUTPUT\nCOMMIT\n";
        assert_eq!(clean(SAVED).unwrap(), expected);
        assert_eq!(clean("*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -p tcp -j OTHER\nCOMMIT\n"), None);
    }
}
