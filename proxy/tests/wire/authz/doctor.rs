//! `nuncio doctor` before chains to an authorizer that hold and that do not.

use std::net::SocketAddr;
use std::process::Command;

use nuncio_testkit::certificates::{Authority, Wanted};

use super::{OwnServer, config};
use crate::running::RunningProxy;

fn doctor(yaml: &str, admin: SocketAddr) -> (bool, String) {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
    command.args(["doctor", "--admin", &admin.to_string(), "-c"]).arg(file.path());
    let output = command.output().unwrap();
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn the_doctor_finds_where_the_chain_to_the_authorizer_breaks() {
    let mut server = OwnServer::start("127.0.0.1:0");
    let yaml = config(server.address, "");
    let proxy = RunningProxy::start(&yaml, 1);
    let (sound, text) = doctor(&yaml, proxy.admin());
    assert!(sound && text.contains("ok      the service answers within the timeout: it lets GET / pass"), "{text}");
    server.kill();
    let (sound, text) = doctor(&yaml, proxy.admin());
    assert!(
        !sound && text.contains("FAILED  TCP connects: ") && text.contains("ok      one is healthy: 1 of 1"),
        "{text}"
    );
}

/// A proxy that ends TLS in front of the authorizer; the doctor's cluster believes `authority`.
#[test]
fn the_doctor_tells_a_handshake_that_fails_from_a_service_that_does_not_answer() {
    let server = OwnServer::start("127.0.0.1:0");
    let folder = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new("authority"), Authority::new("stranger"));
    let issued = authority.issue(&Wanted { name: "authz", dns: vec!["authz.test"], serial: 1, ..Wanted::default() });
    let inline = |text: &str| format!("{{inline_string: {}}}", serde_json::to_string(text).unwrap());
    let types = "type.googleapis.com/envoy.extensions";
    let (chain, key) = (inline(&issued.chain), inline(&issued.key));
    let port = server.address.port();
    let terminator = RunningProxy::start(
        &format!(
            r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: in
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - transport_socket: {{name: t, typed_config: {{"@type": {types}.transport_sockets.tls.v3.DownstreamTlsContext,
        common_tls_context: {{alpn_protocols: [h2], tls_certificates: [{{certificate_chain: {chain}, private_key: {key}}}]}}}}}}
      filters: [{{name: t, typed_config: {{"@type": {types}.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: authz}}}}]
  clusters:
  - name: authz
    load_assignment: {{cluster_name: authz, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]}}
"#
        ),
        1,
    );
    for (believed, sound) in [(&authority, true), (&stranger, false)] {
        std::fs::write(folder.path().join("ca.pem"), &believed.pem).unwrap();
        let context = format!(
            "transport_socket: {{name: t, typed_config: {{\"@type\": {types}.transport_sockets.tls.v3.UpstreamTlsContext, \
             sni: authz.test, common_tls_context: {{alpn_protocols: [h2], validation_context: {{trusted_ca: {{filename: {}/ca.pem}}}}}}}}}}",
            folder.path().display()
        );
        let yaml = config(terminator.socket("in"), &context);
        let proxy = RunningProxy::start(&yaml, 1);
        let (held, text) = doctor(&yaml, proxy.admin());
        assert_eq!(held, sound, "{text}");
        let step = if sound { "ok      TLS: the handshake succeeds" } else { "FAILED  TLS: " };
        assert!(text.contains(step), "{text}");
        assert_eq!(text.contains("CERTIFICATE_VERIFY_FAILED"), !sound, "{text}");
        assert_eq!(text.contains("ok      the service answers within the timeout"), sound, "{text}");
    }
}
