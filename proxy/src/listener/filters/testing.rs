//! One listener filter, shown bytes as a socket would show them.

use std::cell::RefCell;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_api::pb::envoy::config::listener::v3::{ListenerFilter, listener_filter::ConfigType};
use nuncio_api::{Format, LoadOptions, Source, load_message};
use nuncio_core::extension::FactoryContext;
use nuncio_core::net::{Address, ConnectionInfo};
use nuncio_core::network::{ListenerFilterFactory, ListenerStep, MakeListenerFilter};

use crate::access_log::file::{FlushPolicy, LogWriter};
use crate::upstream::testing::{House, memory};

pub(crate) struct Bench {
    house: House,
    make: MakeListenerFilter,
}

impl Bench {
    /// `config`: the filter's message in YAML.
    pub(crate) fn new(factory: &dyn ListenerFilterFactory, config: &str) -> Self {
        let fields = config.trim_start_matches('{');
        let text =
            format!("{{name: x, typed_config: {{\"@type\": type.googleapis.com/{}, {fields}}}", factory.message());
        let loaded = load_message::<ListenerFilter>(Source::text("test", Format::Yaml, text), &LoadOptions::default());
        let message = loaded.unwrap_or_else(|problems| panic!("{problems:#?}")).message;
        let Some(ConfigType::TypedConfig(any)) = message.config_type else { panic!("no typed_config") };
        let house = House::new(Cluster::default(), 1);
        let (warnings, scopes, node) = (RefCell::default(), RefCell::default(), Arc::new(Node::default()));
        let context = FactoryContext {
            name: "",
            stat_prefix: "in",
            has_cluster: &|_| false,
            warnings: &warnings,
            node: &node,
            stats: &house.store,
            log_files: &LogWriter::new(FlushPolicy::default()),
            formats: &crate::format::Formats,
            scopes: &scopes,
        };
        let config = factory.check(&any.value, &context).unwrap_or_else(|e| panic!("{e:?}"));
        let make = config.on_worker(&house.worker().context);
        Self { house, make }
    }

    pub(crate) fn stat(&self, name: &str) -> u64 {
        self.house.store.borrow_mut().value(name).unwrap()
    }

    /// The bytes, one more each time until the filter has decided. `None`: it wants more than there are.
    pub(crate) fn byte_by_byte(&self, bytes: &[u8]) -> (Option<ListenerStep>, ConnectionInfo) {
        self.grow(bytes, 1)
    }

    pub(crate) fn at_once(&self, bytes: &[u8]) -> (Option<ListenerStep>, ConnectionInfo) {
        self.grow(bytes, bytes.len())
    }

    fn grow(&self, bytes: &[u8], step: usize) -> (Option<ListenerStep>, ConnectionInfo) {
        let address = |port: u16| Address::Ip(([127, 0, 0, 1], port).into());
        let mut info = ConnectionInfo::new(0, address(1), address(2));
        let mut filter = (self.make)();
        let first = filter.on_accept(&memory().0, &mut info);
        if first != ListenerStep::NeedData {
            return (Some(first), info);
        }
        for end in (step..=bytes.len()).step_by(step) {
            let end = end.min(filter.max_read_bytes());
            match filter.on_data(&bytes[..end], &mut info) {
                ListenerStep::NeedData if end == filter.max_read_bytes() => return (Some(ListenerStep::Close), info),
                ListenerStep::NeedData => {}
                said => return (Some(said), info),
            }
        }
        (None, info)
    }
}
