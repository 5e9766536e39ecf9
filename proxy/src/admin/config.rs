//! `admin` of the bootstrap: where the interface listens, and who may ask what.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::accesslog::v3::{AccessLog, access_log::ConfigType};
use nuncio_api::pb::envoy::config::bootstrap::v3 as pb;
use nuncio_api::pb::envoy::extensions::access_loggers::file::v3::FileAccessLog;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::AccessLogConfig;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::matcher::StringMatcher;
use nuncio_core::net::Address;

use super::AllowPath;
use crate::access_log;
use crate::net::{BindOptions, options};

supports!(ADMIN = "envoy.config.bootstrap.v3.Admin" {
    address, access_log, access_log_path, socket_options, allow_paths
} noop {
    profile_path: "there is no profiler",
    ignore_global_conn_limit: "the limit counts the connections of listeners only",
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&ADMIN];

/// A checked `Admin` message.
pub struct AdminConfig {
    pub address: Address,
    pub options: BindOptions,
    pub allow: Option<AllowPath>,
    pub logs: Vec<Arc<dyn AccessLogConfig>>,
}

impl AdminConfig {
    /// Without an address there is no admin interface. Paths of errors are relative to the message.
    pub fn from_proto(
        message: &pb::Admin,
        context: &FactoryContext<'_>,
    ) -> Result<Option<AdminConfig>, Vec<ConfigError>> {
        let logs = access_log::check("access_log", &all_logs(message), context)?;
        let Some(address) = &message.address else { return Ok(None) };
        let address = options::address(address).map_err(|e| vec![e.within("address")])?;
        let matchers = message.allow_paths.iter().enumerate();
        let matchers = matchers
            .map(|(i, m)| StringMatcher::from_proto(m).map_err(|e| vec![e.within(&format!("allow_paths[{i}]"))]))
            .collect::<Result<Vec<_>, _>>()?;
        let allow = (!matchers.is_empty())
            .then(|| Box::new(move |path: &str| matchers.iter().any(|m| m.matches(path.as_bytes()))) as AllowPath);
        let options =
            BindOptions { socket_options: options::socket_options(&message.socket_options), ..BindOptions::default() };
        Ok(Some(AdminConfig { address, options, allow, logs }))
    }
}

/// The list, and the file of the deprecated `access_log_path`, which stands behind it so that numbers in errors fit.
fn all_logs(message: &pb::Admin) -> Vec<AccessLog> {
    let mut logs = message.access_log.clone();
    #[allow(deprecated)]
    let path = &message.access_log_path;
    if !path.is_empty() {
        let file = FileAccessLog { path: path.clone(), ..FileAccessLog::default() };
        let config_type = Some(ConfigType::TypedConfig(nuncio_api::pack(&file)));
        logs.push(AccessLog { name: "envoy.access_loggers.file".into(), config_type, ..AccessLog::default() });
    }
    logs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::file::{FlushPolicy, LogWriter};
    use nuncio_api::pb::envoy::config::core::v3::{Address as Message, SocketAddress, address, socket_address};
    use nuncio_api::pb::envoy::r#type::matcher::v3::{StringMatcher as Matcher, string_matcher::MatchPattern};
    use nuncio_core::stats::Store;
    use std::cell::RefCell;
    use std::time::Duration;

    fn read(message: &pb::Admin) -> Result<Option<AdminConfig>, Vec<ConfigError>> {
        let flush = FlushPolicy { interval: Duration::from_secs(10), min_size: 65_536 };
        let context = FactoryContext {
            name: "",
            stat_prefix: "",
            has_cluster: &|_| false,
            warnings: &RefCell::default(),
            node: &Arc::default(),
            stats: &RefCell::new(Store::new()),
            log_files: &LogWriter::new(flush),
            formats: &crate::format::Formats,
            scopes: &RefCell::default(),
        };
        AdminConfig::from_proto(message, &context)
    }

    fn at_9901() -> pb::Admin {
        let socket = SocketAddress {
            address: "127.0.0.1".into(),
            port_specifier: Some(socket_address::PortSpecifier::PortValue(9901)),
            ..Default::default()
        };
        let address = Some(Message { address: Some(address::Address::SocketAddress(socket)) });
        pb::Admin { address, ..Default::default() }
    }

    #[test]
    fn paths_are_allowed_by_any_matcher_and_all_without_one() {
        let matcher = |pattern| Matcher { match_pattern: Some(pattern), ..Default::default() };
        let allow_paths =
            vec![matcher(MatchPattern::Exact("/ready".into())), matcher(MatchPattern::Prefix("/stats".into()))];
        let config = read(&pb::Admin { allow_paths, ..at_9901() }).unwrap();
        let allow = config.unwrap().allow.unwrap();
        assert!(allow("/ready") && allow("/stats?usedonly") && !allow("/ready?x") && !allow("/quitquitquit"));
        let config = read(&at_9901()).unwrap().unwrap();
        assert!(config.allow.is_none() && config.address.to_string() == "127.0.0.1:9901");
        assert!(read(&pb::Admin::default()).unwrap().is_none());
    }

    #[test]
    #[allow(deprecated)]
    fn the_old_log_path_is_a_log_beside_the_list() {
        let old = pb::Admin { access_log_path: "/dev/null".into(), ..at_9901() };
        assert_eq!(read(&old).unwrap().unwrap().logs.len(), 1);
        let wrong = pb::Admin { access_log: vec![AccessLog::default()], ..old };
        assert!(read(&wrong).err().unwrap()[0].path.starts_with("access_log[0]"));
    }
}
