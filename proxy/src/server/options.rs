//! What the command line asks for: every flag of Envoy 1.40 under its own name, checked and with defaults filled in.
//!
//! [`Arguments`] is the command line as it was typed, [`Options`] is what the server reads. A flag that has no meaning
//! in this proxy yet is taken all the same, so that a start script written for Envoy runs unchanged, and
//! [`Options::warnings`] holds one sentence about it for the log.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::lifecycle::DrainStrategy;
use crate::logging::{Level, Settings};

/// Envoy's own default, printed by `/server_info`; [`crate::logging`] reads the same pattern language.
pub const DEFAULT_LOG_FORMAT: &str = "[%Y-%m-%d %T.%e][%t][%l][%n] [%g:%#] %v";

/// The command line as typed. The order is that of Envoy's usage text.
#[derive(clap::Args, Debug, Default)]
pub struct Arguments {
    /// Tag every stat with NAME:VALUE; may be repeated
    #[arg(long, value_name = "string")]
    pub stats_tag: Vec<String>,
    /// Enable core dumps
    #[arg(long)]
    pub enable_core_dump: bool,
    /// Permissions of the hot restart socket, octal
    #[arg(long, value_name = "string", default_value = "600")]
    pub socket_mode: String,
    /// Path of the hot restart socket
    #[arg(long, value_name = "string", default_value = "@envoy_domain_socket")]
    pub socket_path: String,
    /// Extensions to disable, separated by commas
    #[arg(long, value_name = "string", default_value = "")]
    pub disable_extensions: String,
    /// Take the default number of workers from the cpuset
    #[arg(long)]
    pub cpuset_threads: bool,
    /// Trace mutex contention
    #[arg(long)]
    pub enable_mutex_tracing: bool,
    /// Do not offer hot restart
    #[arg(long)]
    pub disable_hot_restart: bool,
    /// serve: check the configuration and serve; validate: check it and exit; init_only: initialize and exit
    #[arg(long, value_name = "string", default_value = "serve")]
    pub mode: String,
    /// Seconds after which a hot restart's parent is ended
    #[arg(long, value_name = "uint32_t", default_value_t = 900)]
    pub parent_shutdown_time_s: u32,
    /// How a drain proceeds: gradual or immediate
    #[arg(long, value_name = "string", default_value = "gradual")]
    pub drain_strategy: String,
    /// Seconds a drain may last, for hot restarts and removed listeners
    #[arg(long, value_name = "uint32_t", default_value_t = 600)]
    pub drain_time_s: u32,
    /// Write a log file out once this many KiB wait
    #[arg(long, value_name = "uint32_t", default_value_t = 64)]
    pub file_flush_min_size_kb: u32,
    /// Write log files out at least this often, in milliseconds
    #[arg(long, value_name = "uint32_t", default_value_t = 10_000)]
    pub file_flush_interval_msec: u32,
    /// Zone of this node
    #[arg(long, value_name = "string", default_value = "")]
    pub service_zone: String,
    /// Name of this node
    #[arg(long, value_name = "string", default_value = "")]
    pub service_node: String,
    /// Cluster this node belongs to
    #[arg(long, value_name = "string", default_value = "")]
    pub service_cluster: String,
    /// Print the hot restart version and exit
    #[arg(long)]
    pub hot_restart_version: bool,
    /// Number of hot restarts before this process
    #[arg(long, value_name = "uint32_t", default_value_t = 0)]
    pub restart_epoch: u32,
    /// File the log goes to, instead of the standard error
    #[arg(long, value_name = "string", default_value = "")]
    pub log_path: String,
    /// Let log levels be set by source file
    #[arg(long)]
    pub enable_fine_grain_logging: bool,
    /// Write line breaks and other control characters of log messages as escapes
    #[arg(long)]
    pub log_format_escaped: bool,
    /// Pattern of a log line, in the language of spdlog
    #[arg(long, value_name = "string", default_value = DEFAULT_LOG_FORMAT)]
    pub log_format: String,
    /// Levels of single loggers, as in upstream:debug,config:trace
    #[arg(long, value_name = "string", default_value = "")]
    pub component_log_level: String,
    /// Least level that is logged: trace, debug, info, warning (warn), error, critical, off
    #[arg(short = 'l', long, value_name = "string", default_value = "info")]
    pub log_level: String,
    /// Address family of the local address: v4 or v6
    #[arg(long, value_name = "string", default_value = "v4")]
    pub local_address_ip_version: String,
    /// File to write the admin listener's address to
    #[arg(long, value_name = "string", default_value = "")]
    pub admin_address_path: String,
    /// Log a stack trace as one entry
    #[arg(long)]
    pub log_stacktrace_single_entry: bool,
    /// Do not warn of deprecated fields
    #[arg(long)]
    pub skip_deprecated_logs: bool,
    /// Do not count unknown fields of dynamic configuration, nor warn of them
    #[arg(long)]
    pub ignore_unknown_dynamic_fields: bool,
    /// Refuse dynamic configuration with unknown fields
    #[arg(long)]
    pub reject_unknown_dynamic_fields: bool,
    /// Warn of unknown fields in static configuration instead of refusing them
    #[arg(long)]
    pub allow_unknown_static_fields: bool,
    /// The old name of --allow-unknown-static-fields
    #[arg(long)]
    pub allow_unknown_fields: bool,
    /// Configuration given as text; merged over that of --config-path
    #[arg(long, value_name = "string", default_value = "")]
    pub config_yaml: String,
    /// Configuration file
    #[arg(short = 'c', long, value_name = "string", default_value = "")]
    pub config_path: String,
    /// Number of worker threads; default: as many as the machine or the control group allows
    #[arg(long, value_name = "uint32_t")]
    pub concurrency: Option<u32>,
    /// File to write the base ID to
    #[arg(long, value_name = "string", default_value = "")]
    pub base_id_path: String,
    /// Do not take over a hot restart parent's stats
    #[arg(long)]
    pub skip_hot_restart_parent_stats: bool,
    /// Start as usual if a hot restart's parent is not there
    #[arg(long)]
    pub skip_hot_restart_on_no_parent: bool,
    /// Choose a free base ID
    #[arg(long)]
    pub use_dynamic_base_id: bool,
    /// Tells several proxies on one machine apart
    #[arg(long, value_name = "uint32_t", default_value_t = 0)]
    pub base_id: u32,
    /// Print the version and exit
    #[arg(long)]
    pub version: bool,
    /// Warn of fields that are set but not implemented instead of refusing them (not in Envoy)
    #[arg(long)]
    pub allow_unsupported: bool,
    /// SIGTERM and SIGINT drain, and end when no connection is left or --drain-time-s is over (not in Envoy)
    #[arg(long)]
    pub drain_on_sigterm: bool,
    /// Unix socket by which a new process takes over the listening sockets of the old one (not in Envoy)
    #[arg(long, value_name = "path", default_value = "")]
    pub hot_restart: String,
}

/// What to do with the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Serve,
    Validate,
    InitOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    V4,
    V6,
}

/// The checked command line. Text options are empty when not given, as in Envoy.
#[derive(Clone, Debug)]
pub struct Options {
    pub config_path: String,
    pub config_yaml: String,
    pub mode: Mode,
    /// At least one.
    pub concurrency: u32,
    pub log_level: Level,
    /// Logger name and level, in the order given.
    pub component_log_levels: Vec<(String, Level)>,
    pub component_log_level: String,
    pub log_format: String,
    pub log_format_escaped: bool,
    pub log_path: String,
    pub service_cluster: String,
    pub service_node: String,
    pub service_zone: String,
    pub base_id: u32,
    pub use_dynamic_base_id: bool,
    pub base_id_path: String,
    pub restart_epoch: u32,
    pub drain_time: Duration,
    pub drain_strategy: DrainStrategy,
    pub parent_shutdown_time: Duration,
    pub disable_hot_restart: bool,
    pub admin_address_path: String,
    pub local_address_ip_version: IpVersion,
    pub file_flush_interval: Duration,
    pub file_flush_min_size: usize,
    pub allow_unknown_static_fields: bool,
    pub reject_unknown_dynamic_fields: bool,
    pub ignore_unknown_dynamic_fields: bool,
    pub skip_deprecated_logs: bool,
    pub allow_unsupported: bool,
    pub drain_on_sigterm: bool,
    /// None: nobody takes over.
    pub hot_restart: Option<PathBuf>,
    /// Tags of every stat, name and value.
    pub stats_tags: Vec<(String, String)>,
    pub disabled_extensions: Vec<String>,
    /// One sentence for each flag that was given and does nothing here, to be logged once logging works.
    pub warnings: Vec<String>,
    // Only shown by /server_info.
    cpuset_threads: bool,
    enable_mutex_tracing: bool,
    enable_fine_grain_logging: bool,
    enable_core_dump: bool,
    socket_path: String,
    socket_mode: String,
    skip_hot_restart_on_no_parent: bool,
    skip_hot_restart_parent_stats: bool,
    log_stacktrace_single_entry: bool,
}

/// One sentence that says what is wrong with the command line.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionsError(pub String);

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.0)
    }
}

impl std::error::Error for OptionsError {}

// === impl Options ===

impl Options {
    /// Checks what the types of [`Arguments`] cannot; the first mistake is told, as Envoy does.
    pub fn new(arguments: Arguments) -> Result<Options, OptionsError> {
        let a = arguments;
        let warnings = warnings_of(&a);
        let log_level = level(&a.log_level)?;
        let component_log_levels = component_levels(&a.component_log_level)?;
        if a.enable_fine_grain_logging && !a.component_log_level.is_empty() {
            return refuse("--component-log-level will not work with --enable-fine-grain-logging");
        }
        if a.use_dynamic_base_id && a.restart_epoch > 0 {
            return refuse(format!("cannot use --restart-epoch={} with --use-dynamic-base-id", a.restart_epoch));
        }
        let stats_tags = a.stats_tag.iter().map(|tag| stats_tag(tag)).collect::<Result<_, _>>()?;
        let list = |text: &str| text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect();
        Ok(Options {
            concurrency: a.concurrency.unwrap_or_else(hardware_threads).max(1),
            mode: mode(&a.mode)?,
            log_level,
            component_log_levels,
            local_address_ip_version: ip_version(&a.local_address_ip_version)?,
            drain_strategy: drain_strategy(&a.drain_strategy)?,
            stats_tags,
            warnings,
            disabled_extensions: list(&a.disable_extensions),
            config_path: a.config_path,
            config_yaml: a.config_yaml,
            component_log_level: a.component_log_level,
            log_format: a.log_format,
            log_format_escaped: a.log_format_escaped,
            log_path: a.log_path,
            service_cluster: a.service_cluster,
            service_node: a.service_node,
            service_zone: a.service_zone,
            base_id: a.base_id,
            use_dynamic_base_id: a.use_dynamic_base_id,
            base_id_path: a.base_id_path,
            restart_epoch: a.restart_epoch,
            drain_time: Duration::from_secs(a.drain_time_s.into()),
            parent_shutdown_time: Duration::from_secs(a.parent_shutdown_time_s.into()),
            disable_hot_restart: a.disable_hot_restart,
            admin_address_path: a.admin_address_path,
            file_flush_interval: Duration::from_millis(a.file_flush_interval_msec.into()),
            file_flush_min_size: a.file_flush_min_size_kb as usize * 1024,
            allow_unknown_static_fields: a.allow_unknown_static_fields || a.allow_unknown_fields,
            reject_unknown_dynamic_fields: a.reject_unknown_dynamic_fields,
            ignore_unknown_dynamic_fields: a.ignore_unknown_dynamic_fields,
            skip_deprecated_logs: a.skip_deprecated_logs,
            allow_unsupported: a.allow_unsupported,
            drain_on_sigterm: a.drain_on_sigterm,
            hot_restart: (!a.hot_restart.is_empty()).then(|| a.hot_restart.into()),
            cpuset_threads: a.cpuset_threads,
            enable_mutex_tracing: a.enable_mutex_tracing,
            enable_fine_grain_logging: a.enable_fine_grain_logging,
            enable_core_dump: a.enable_core_dump,
            socket_path: a.socket_path,
            socket_mode: a.socket_mode,
            skip_hot_restart_on_no_parent: a.skip_hot_restart_on_no_parent,
            skip_hot_restart_parent_stats: a.skip_hot_restart_parent_stats,
            log_stacktrace_single_entry: a.log_stacktrace_single_entry,
        })
    }

    /// What [`crate::logging::init`] wants to know.
    pub fn logging(&self) -> Settings<'_> {
        Settings {
            level: self.log_level,
            component_levels: &self.component_log_levels,
            format: &self.log_format,
            escaped: self.log_format_escaped,
            path: &self.log_path,
        }
    }

    /// `envoy.admin.v3.CommandLineOptions` as `/server_info` shows it: all fields, zero or not, in Envoy's order.
    pub fn to_json(&self) -> Value {
        let seconds = |d: Duration| Value::String(json_duration(d));
        json!({
            "base_id": self.base_id.to_string(),
            "concurrency": self.concurrency,
            "config_path": self.config_path,
            "config_yaml": self.config_yaml,
            "allow_unknown_static_fields": self.allow_unknown_static_fields,
            "admin_address_path": self.admin_address_path,
            "local_address_ip_version": match self.local_address_ip_version { IpVersion::V4 => "v4", IpVersion::V6 => "v6" },
            "log_level": self.log_level.name(),
            "component_log_level": self.component_log_level,
            "log_format": self.log_format,
            "log_path": self.log_path,
            "service_cluster": self.service_cluster,
            "service_node": self.service_node,
            "service_zone": self.service_zone,
            "file_flush_interval": seconds(self.file_flush_interval),
            "drain_time": seconds(self.drain_time),
            "parent_shutdown_time": seconds(self.parent_shutdown_time),
            "mode": match self.mode { Mode::Serve => "Serve", Mode::Validate => "Validate", Mode::InitOnly => "InitOnly" },
            "disable_hot_restart": self.disable_hot_restart,
            "enable_mutex_tracing": self.enable_mutex_tracing,
            "restart_epoch": self.restart_epoch,
            "cpuset_threads": self.cpuset_threads,
            "reject_unknown_dynamic_fields": self.reject_unknown_dynamic_fields,
            "log_format_escaped": self.log_format_escaped,
            "disabled_extensions": self.disabled_extensions,
            "ignore_unknown_dynamic_fields": self.ignore_unknown_dynamic_fields,
            "use_dynamic_base_id": self.use_dynamic_base_id,
            "base_id_path": self.base_id_path,
            "drain_strategy": match self.drain_strategy { DrainStrategy::Gradual => "Gradual", DrainStrategy::Immediate => "Immediate" },
            "enable_fine_grain_logging": self.enable_fine_grain_logging,
            "socket_path": self.socket_path,
            "socket_mode": u32::from_str_radix(&self.socket_mode, 8).unwrap_or(0),
            "enable_core_dump": self.enable_core_dump,
            "stats_tag": self.stats_tags.iter().map(|(name, value)| format!("{name}:{value}")).collect::<Vec<_>>(),
            "skip_hot_restart_on_no_parent": self.skip_hot_restart_on_no_parent,
            "skip_hot_restart_parent_stats": self.skip_hot_restart_parent_stats,
            "skip_deprecated_logs": self.skip_deprecated_logs,
            "file_flush_min_size": self.file_flush_min_size,
            "log_stacktrace_single_entry": self.log_stacktrace_single_entry,
        })
    }
}

/// A duration in protobuf's JSON form: whole seconds bare, a fraction with three digits where they suffice.
fn json_duration(d: Duration) -> String {
    match d.subsec_nanos() {
        0 => format!("{}s", d.as_secs()),
        nanos if nanos % 1_000_000 == 0 => format!("{}.{:03}s", d.as_secs(), nanos / 1_000_000),
        nanos => format!("{}.{:09}s", d.as_secs(), nanos),
    }
}

/// What the machine offers this process: its CPU affinity and its control group's quota both count.
fn hardware_threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, OptionsError> {
    Err(OptionsError(reason.into()))
}

fn level(text: &str) -> Result<Level, OptionsError> {
    text.parse().or_else(|()| refuse(format!("invalid log level specified '{text}'")))
}

fn mode(text: &str) -> Result<Mode, OptionsError> {
    match text {
        "serve" => Ok(Mode::Serve),
        "validate" => Ok(Mode::Validate),
        "init_only" => Ok(Mode::InitOnly),
        other => refuse(format!("unknown mode '{other}'")),
    }
}

fn ip_version(text: &str) -> Result<IpVersion, OptionsError> {
    match text {
        "v4" => Ok(IpVersion::V4),
        "v6" => Ok(IpVersion::V6),
        other => refuse(format!("unknown IP address version '{other}'")),
    }
}

fn drain_strategy(text: &str) -> Result<DrainStrategy, OptionsError> {
    match text {
        "gradual" => Ok(DrainStrategy::Gradual),
        "immediate" => Ok(DrainStrategy::Immediate),
        other => refuse(format!("unknown drain-strategy '{other}'")),
    }
}

fn component_levels(text: &str) -> Result<Vec<(String, Level)>, OptionsError> {
    let mut levels = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let Some((name, wanted)) = item.split_once(':').filter(|(_, wanted)| !wanted.contains(':')) else {
            return refuse(format!("component log level not correctly specified '{item}'"));
        };
        let wanted = level(wanted)?;
        if !crate::logging::is_logger(name) {
            return refuse(format!("invalid component specified '{name}'"));
        }
        levels.push((name.to_owned(), wanted));
    }
    Ok(levels)
}

fn stats_tag(tag: &str) -> Result<(String, String), OptionsError> {
    let Some((name, value)) = tag.split_once(':') else {
        return refuse(format!("misformatted stats-tag '{tag}'"));
    };
    if !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return refuse(format!("misformatted stats-tag '{tag}' contains invalid char in '{name}'"));
    }
    if value.contains('.') {
        return refuse(format!("misformatted stats-tag '{tag}' contains invalid char in '{value}'"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// One sentence for each flag that was given and does nothing.
fn warnings_of(a: &Arguments) -> Vec<String> {
    let mut warnings = Vec::new();
    if a.allow_unknown_fields {
        warnings.push("--allow-unknown-fields is deprecated, use --allow-unknown-static-fields instead.".to_owned());
    }
    let without_meaning = [
        ("--enable-core-dump", a.enable_core_dump),
        ("--socket-mode", a.socket_mode != "600"),
        ("--socket-path", a.socket_path != "@envoy_domain_socket"),
        ("--cpuset-threads", a.cpuset_threads),
        ("--enable-mutex-tracing", a.enable_mutex_tracing),
        ("--parent-shutdown-time-s", a.parent_shutdown_time_s != 900 && a.hot_restart.is_empty()),
        ("--restart-epoch", a.restart_epoch != 0),
        ("--enable-fine-grain-logging", a.enable_fine_grain_logging),
        ("--log-stacktrace-single-entry", a.log_stacktrace_single_entry),
        ("--base-id-path", !a.base_id_path.is_empty()),
        ("--skip-hot-restart-parent-stats", a.skip_hot_restart_parent_stats),
        ("--skip-hot-restart-on-no-parent", a.skip_hot_restart_on_no_parent),
        ("--use-dynamic-base-id", a.use_dynamic_base_id),
        ("--base-id", a.base_id != 0),
    ];
    for (flag, given) in without_meaning {
        if given {
            warnings.push(format!("{flag} is accepted and has no effect"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, OptionsError> {
        Options::new(crate::cli::arguments(line.split_whitespace().map(Into::into)).expect("well formed"))
    }

    #[test]
    fn defaults_are_envoys() {
        let o =
            parse("-c x.yaml --concurrency 1 --base-id 77 -l warn --admin-address-path /a --service-node nn").unwrap();
        // What Envoy 1.40 prints in /server_info for this command line, except that it shows 0 for socket_mode and
        // file_flush_min_size whatever they are.
        let expected = r#"{"base_id":"77","concurrency":1,"config_path":"x.yaml","config_yaml":"","allow_unknown_static_fields":false,"admin_address_path":"/a","local_address_ip_version":"v4","log_level":"warning","component_log_level":"","log_format":"[%Y-%m-%d %T.%e][%t][%l][%n] [%g:%#] %v","log_path":"","service_cluster":"","service_node":"nn","service_zone":"","file_flush_interval":"10s","drain_time":"600s","parent_shutdown_time":"900s","mode":"Serve","disable_hot_restart":false,"enable_mutex_tracing":false,"restart_epoch":0,"cpuset_threads":false,"reject_unknown_dynamic_fields":false,"log_format_escaped":false,"disabled_extensions":[],"ignore_unknown_dynamic_fields":false,"use_dynamic_base_id":false,"base_id_path":"","drain_strategy":"Gradual","enable_fine_grain_logging":false,"socket_path":"@envoy_domain_socket","socket_mode":384,"enable_core_dump":false,"stats_tag":[],"skip_hot_restart_on_no_parent":false,"skip_hot_restart_parent_stats":false,"skip_deprecated_logs":false,"file_flush_min_size":65536,"log_stacktrace_single_entry":false}"#;
        assert_eq!(o.to_json().to_string(), expected);
        assert_eq!(o.warnings, ["--base-id is accepted and has no effect"]);
    }

    #[test]
    fn mistakes_are_told_in_envoys_sentences() {
        for (line, sentence) in [
            ("-l bogus", "invalid log level specified 'bogus'"),
            ("--mode bogus", "unknown mode 'bogus'"),
            ("--drain-strategy bogus", "unknown drain-strategy 'bogus'"),
            ("--local-address-ip-version v5", "unknown IP address version 'v5'"),
            ("--component-log-level upstream:bogus", "invalid log level specified 'bogus'"),
            ("--component-log-level bogus:debug", "invalid component specified 'bogus'"),
            ("--component-log-level foo", "component log level not correctly specified 'foo'"),
            ("--stats-tag foo", "misformatted stats-tag 'foo'"),
            ("--stats-tag a:b.c", "misformatted stats-tag 'a:b.c' contains invalid char in 'b.c'"),
            ("--stats-tag a-:b", "misformatted stats-tag 'a-:b' contains invalid char in 'a-'"),
            ("--use-dynamic-base-id --restart-epoch 1", "cannot use --restart-epoch=1 with --use-dynamic-base-id"),
            (
                "--enable-fine-grain-logging --component-log-level admin:debug",
                "--component-log-level will not work with --enable-fine-grain-logging",
            ),
        ] {
            assert_eq!(parse(line).err(), Some(OptionsError(sentence.to_owned())), "{line}");
        }
    }

    #[test]
    fn no_workers_means_one_and_intervals_are_exact() {
        let o = parse("--concurrency 0 --file-flush-interval-msec 50 --allow-unknown-fields").unwrap();
        assert_eq!((o.concurrency, o.to_json()["file_flush_interval"].as_str()), (1, Some("0.050s")));
        assert!(o.allow_unknown_static_fields && o.warnings[0].contains("deprecated"));
    }
}
