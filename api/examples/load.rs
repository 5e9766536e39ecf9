//! Loads configuration files as the proxy does and says what came of it, with the peak of memory; or writes a large
//! bootstrap to try that on: `load --make 10000 > big.yaml`, `load big.yaml`, `load --each a.yaml b.json`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use nuncio_api::routes::HttpRoutes;
use nuncio_api::{Format, LoadOptions, Source, load_bootstrap};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--make", count] => {
            print!("{}", make(count.parse().unwrap_or(10_000)));
            ExitCode::SUCCESS
        }
        ["--each", files @ ..] => {
            for file in files {
                println!("{} {}", if load(&[file], false) { "ok" } else { "no" }, file);
            }
            ExitCode::SUCCESS
        }
        files => {
            if load(files, true) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Files in order; what is not the first may be a text that begins with `{`, as of `--config-yaml`.
fn load(files: &[&str], loud: bool) -> bool {
    let options = LoadOptions::default();
    let mut sources = Vec::new();
    for file in files {
        if file.starts_with('{') {
            sources.push(Source::text("--config-yaml", Format::Yaml, *file));
            continue;
        }
        match Source::file(Path::new(file), &options.limits) {
            Ok(source) => sources.push(source),
            Err(error) => {
                println!("{error}");
                return false;
            }
        }
    }
    match load_bootstrap(sources, &options) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                println!("{warning}");
            }
            let mut routes = 0;
            for listener in loaded.listeners.iter().filter_map(|l| l.decode().ok()) {
                for filter in listener.filter_chains.iter().flat_map(|c| &c.filters) {
                    if let Some(nuncio_api::pb::envoy::config::listener::v3::filter::ConfigType::TypedConfig(any)) =
                        &filter.config_type
                        && let Ok((_, Some(config))) = HttpRoutes::unpack(any)
                    {
                        routes += config
                            .virtual_hosts()
                            .flatten()
                            .map(|h| h.routes().filter(Result::is_ok).count())
                            .sum::<usize>();
                    }
                }
            }
            let clusters = loaded.clusters.iter().filter(|c| c.decode().is_ok()).count();
            if loud {
                println!("{clusters} clusters, {} listeners, {routes} routes", loaded.listeners.len());
            }
        }
        Err(found) => {
            for diagnostic in &found {
                println!("{diagnostic}");
            }
            return false;
        }
    }
    if loud {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for line in status.lines().filter(|l| l.starts_with("VmHWM") || l.starts_with("VmRSS")) {
            println!("{line}");
        }
    }
    true
}

/// Clusters with two hosts, a health check and protocol options, and as many routes in hundreds of virtual hosts.
fn make(count: usize) -> String {
    let mut out = String::from("static_resources:\n  clusters:\n");
    for i in 0..count {
        let _ = write!(
            out,
            r#"  - name: cluster_{i}
    type: STATIC
    connect_timeout: 0.25s
    lb_policy: ROUND_ROBIN
    load_assignment:
      cluster_name: cluster_{i}
      endpoints:
      - lb_endpoints:
        - endpoint:
            address:
              socket_address:
                address: 10.0.{a}.{b}
                port_value: 8080
        - endpoint:
            address:
              socket_address:
                address: 10.1.{a}.{b}
                port_value: 8080
    health_checks:
    - timeout: 1s
      interval: 10s
      unhealthy_threshold: 3
      healthy_threshold: 2
      http_health_check:
        path: /healthz
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options: {{}}
"#,
            a = i / 250 % 250,
            b = i % 250 + 1,
        );
    }
    out.push_str(
        r#"  listeners:
  - name: main
    address:
      socket_address:
        address: 127.0.0.1
        port_value: 10000
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            name: local
            virtual_hosts:
"#,
    );
    for i in 0..count {
        if i % 100 == 0 {
            let host = i / 100;
            let _ = write!(
                out,
                "            - name: host_{host}\n              domains:\n              - host{host}.example.com\n              routes:\n"
            );
        }
        let _ = write!(
            out,
            r#"              - match:
                  prefix: /service/{i}/
                  headers:
                  - name: x-version
                    string_match:
                      exact: v{i}
                route:
                  cluster: cluster_{i}
                  timeout: 15s
                  retry_policy:
                    retry_on: 5xx,reset
                    num_retries: 2
                    per_try_timeout: 3s
"#
        );
    }
    out
}
