//! `nuncio doctor`: walks the chain between a filter that asks an authorization service and that service, and says of
//! each step whether it holds and why not.
//!
//! The filter names a cluster → the cluster exists → it speaks HTTP/2 (all of it by the configuration alone) → discovery
//! gives hosts → one is healthy (by the admin of a running proxy) → TCP connects → TLS, if configured → the service
//! answers within the timeout (asked from here). A step that fails ends its chain.

mod asking;
mod references;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use nuncio_api::LoadedBootstrap;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::prost::Message;
use nuncio_core::upstream::AsyncFailure;

use crate::extensions;
use crate::server::worker::runtime;
use crate::server::{Options, bootstrap};
use crate::upstream::http_options::UpstreamProtocol;
use crate::upstream::{ClusterConfig, ClusterDefaults};
use asking::Visit;
use references::{Reference, Service};

#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The configuration that the proxy runs with
    #[arg(short, long, value_name = "FILE")]
    config_path: String,
    /// The admin of the running proxy; without it only what the configuration says is looked at
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    match examine(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("doctor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything holds.
fn examine(arguments: &Arguments) -> io::Result<bool> {
    let options = options(&arguments.config_path)?;
    let problems = |problems: Vec<nuncio_api::Diagnostic>| {
        io::Error::other(problems.iter().map(|problem| format!("{problem}\n")).collect::<String>())
    };
    let loaded = bootstrap::load(&options, &extensions::standard()).map_err(problems)?;
    let references = references::of(&loaded);
    let mut report = Report { out: Vec::new(), sound: true };
    if references.is_empty() {
        report.note("nothing in this configuration asks an authorization service");
    }
    let runtime = runtime()?;
    for reference in &references {
        runtime.block_on(examine_one(reference, &loaded, arguments.admin, &mut report));
    }
    // Whoever closed the standard output does not want to read it.
    let _ = io::stdout().write_all(&report.out);
    Ok(report.sound)
}

fn options(path: &str) -> io::Result<Options> {
    let flags = ["nuncio", "--allow-unsupported", "-c", path];
    match super::parse(flags.into_iter().map(Into::into)) {
        Ok(super::Request::Serve(options)) => Ok(*options),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// What is said, and whether all of it is good.
struct Report {
    out: Vec<u8>,
    sound: bool,
}

impl Report {
    fn note(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
        self.out.push(b'\n');
    }

    /// A step that holds, with what makes it so, or one that does not.
    fn step<T>(&mut self, what: &str, result: Result<(T, String), String>) -> Option<T> {
        match result {
            Ok((value, why)) => {
                self.note(&format!("  ok      {what}: {why}"));
                Some(value)
            }
            Err(why) => {
                self.note(&format!("  FAILED  {what}: {why}"));
                self.sound = false;
                None
            }
        }
    }
}

async fn examine_one(
    reference: &Reference,
    loaded: &LoadedBootstrap,
    admin: Option<SocketAddr>,
    report: &mut Report,
) -> Option<()> {
    report.note(&format!("{} asks the cluster '{}'", reference.place, reference.cluster));
    let cluster = report.step("the cluster exists", find(loaded, &reference.cluster))?;
    let config = report.step("it can be used", read(&cluster))?;
    if matches!(reference.service, Service::Grpc(_)) {
        report.step("it speaks HTTP/2", speaks_http2(&config))?;
    }
    let Some(admin) = admin else {
        report.note("  not looked at: hosts, connections, answers (they need --admin)");
        return Some(());
    };
    let visit = Visit::new();
    let hosts = visit.hosts(admin, &reference.cluster).await.and_then(|hosts| {
        let hosts = hosts.ok_or("the running proxy has no such cluster: another configuration?")?;
        let count = hosts.len();
        if count == 0 { Err("none".to_owned()) } else { Ok((hosts, format!("{count}"))) }
    });
    let hosts = report.step("discovery gives hosts", hosts)?;
    let healthy: Vec<_> = hosts.iter().filter(|host| host.sick.is_none()).map(|host| host.address.clone()).collect();
    let health = if healthy.is_empty() {
        let reasons = hosts.iter().map(|host| format!("{} {}", host.address, host.sick.as_deref().unwrap_or_default()));
        Err(reasons.collect::<Vec<_>>().join(", "))
    } else {
        Ok(((), format!("{} of {}", healthy.len(), hosts.len())))
    };
    report.step("one is healthy", health)?;
    let mut reached = Vec::new();
    for address in &healthy {
        let connected = asking::connect(address).await;
        let connected = connected.map(|()| ((), address.to_string())).map_err(|error| format!("{address}: {error}"));
        if report.step("TCP connects", connected).is_some() {
            reached.push(address.clone());
        }
    }
    if reached.is_empty() {
        return None;
    }
    let is_tls = cluster.transport_socket.is_some() || !cluster.transport_socket_matches.is_empty();
    let answered = visit.check(reference, config, &reached).await;
    if is_tls {
        let tls = match &answered {
            Err(AsyncFailure::Connect(reason)) => Err(reason.clone()),
            _ => Ok(((), "the handshake succeeds".to_owned())),
        };
        report.step("TLS", tls)?;
    }
    let answered = answered.map(|(said, took)| ((), format!("{said}, after {} ms", took.as_millis())));
    report.step("the service answers within the timeout", answered.map_err(|failure| failure.to_string()))
}

fn find(loaded: &LoadedBootstrap, name: &str) -> Result<(Cluster, String), String> {
    let mut clusters = loaded.clusters.iter().filter_map(|element| {
        let cluster = Cluster::decode(element.bytes.clone()).ok()?;
        (cluster.name == name).then(|| (cluster, element.path()))
    });
    let dynamic = loaded.bootstrap.dynamic_resources.as_ref().is_some_and(|dynamic| dynamic.cds_config.is_some());
    let hint = if dynamic { " (clusters that CDS brings are not looked at)" } else { "" };
    clusters.next().ok_or_else(|| format!("no cluster of the configuration is called '{name}'{hint}"))
}

fn read(cluster: &Cluster) -> Result<(ClusterConfig, String), String> {
    let config = ClusterConfig::from_proto(cluster, false, &ClusterDefaults::default());
    let config = config.map_err(|errors| {
        let texts = errors.iter().map(|error| format!("{}: {}", error.path, error.reason));
        texts.collect::<Vec<_>>().join(", ")
    })?;
    Ok((config, "its settings are good".to_owned()))
}

fn speaks_http2(config: &ClusterConfig) -> Result<((), String), String> {
    match config.http.protocol {
        UpstreamProtocol::Http2 => Ok(((), "explicit_http_config says so".to_owned())),
        UpstreamProtocol::Auto => Ok(((), "if the TLS handshake chooses it".to_owned())),
        UpstreamProtocol::Downstream => Ok(((), "gRPC calls are HTTP/2".to_owned())),
        UpstreamProtocol::Http1 => {
            Err("gRPC needs HTTP/2, and this cluster speaks HTTP/1.1: set explicit_http_config: \
                                        {http2_protocol_options: {}} in its HttpProtocolOptions"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of the example, changed.
    fn told(change: impl Fn(&str) -> String) -> (bool, String) {
        use nuncio_api::{Format, LoadOptions, Source, load_bootstrap};
        let text = change(include_str!("../../../configs/ext-authz.yaml"));
        let loaded = load_bootstrap(vec![Source::text("x", Format::Yaml, text)], &LoadOptions::default());
        let loaded = loaded.unwrap_or_else(|problems| panic!("{problems:#?}"));
        let mut report = Report { out: Vec::new(), sound: true };
        let runtime = runtime().unwrap();
        for reference in references::of(&loaded) {
            runtime.block_on(examine_one(&reference, &loaded, None, &mut report));
        }
        (report.sound, String::from_utf8(report.out).unwrap())
    }

    #[test]
    fn what_the_configuration_alone_tells_is_told_without_a_proxy() {
        let (sound, text) = told(str::to_owned);
        assert!(sound && text.contains("ok      it speaks HTTP/2") && text.contains("need --admin"), "{text}");
        let (sound, text) = told(|example| example.replace("cluster_name: authz}", "cluster_name: auht}"));
        assert!(!sound && text.contains("FAILED  the cluster exists: no cluster of the configuration"), "{text}");
        let http1 = |example: &str| example.replace("{http2_protocol_options: {}}", "{http_protocol_options: {}}");
        let (sound, text) = told(http1);
        assert!(!sound && text.contains("FAILED  it speaks HTTP/2: gRPC needs HTTP/2"), "{text}");
    }
}
