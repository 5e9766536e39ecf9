//! `typed_per_filter_config` at its four levels. Each level's table holds the levels above it
//! too, so that a request asks one table only.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use nuncio_api::any::type_name;
use nuncio_api::pb::envoy::config::route::v3::FilterConfig as FilterConfigProto;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::supports;
use nuncio_api::unpack;
use nuncio_core::error::ConfigError;
use nuncio_core::typed::unknown;

supports!(pub(super) FILTER_CONFIG = "envoy.config.route.v3.FilterConfig" { config, is_optional, disabled });

/// A filter's own view of its per-route configuration.
pub type FilterConfig = Arc<dyn Any + Send + Sync>;

/// Reads the per-route configuration of the filter of that name; `Ok(None)` if no filter here can.
pub type ReadFilterConfig<'a> = dyn Fn(&str, &ProtoAny) -> Result<Option<FilterConfig>, ConfigError> + 'a;

/// What the levels up to this one say of each filter.
#[derive(Clone, Default)]
pub(super) struct FilterConfigs(Vec<Entry>);

#[derive(Clone)]
struct Entry {
    name: Arc<str>,
    disabled: bool,
    /// The most general first.
    configs: Vec<FilterConfig>,
}

impl FilterConfigs {
    /// The table of a level that says `messages`, below `parent`. `None` if it says nothing.
    pub(super) fn extend(
        parent: Option<&Arc<Self>>,
        messages: &HashMap<String, ProtoAny>,
        read_config: &ReadFilterConfig<'_>,
    ) -> Result<Option<Arc<Self>>, ConfigError> {
        if messages.is_empty() {
            return Ok(None);
        }
        let mut all = parent.map_or_else(Self::default, |p| Self::clone(p));
        for (name, message) in messages {
            let at = |e: ConfigError| e.within(&format!("typed_per_filter_config[{name}]"));
            let Some((disabled, config)) = read_one(name, message, read_config).map_err(at)? else { continue };
            let entry = match all.0.iter().position(|e| *e.name == **name) {
                Some(i) => &mut all.0[i],
                None => all.0.push_mut(Entry { name: name.as_str().into(), disabled, configs: Vec::new() }),
            };
            entry.disabled = disabled;
            entry.configs.extend(config);
        }
        Ok(Some(Arc::new(all)))
    }

    /// What a level says of something that is no filter's, below what the levels above say of it.
    pub(super) fn and(
        own: Option<Arc<Self>>,
        parent: Option<&Arc<Self>>,
        name: &str,
        config: Option<FilterConfig>,
    ) -> Option<Arc<Self>> {
        let Some(config) = config else { return own };
        let mut all = own.as_ref().or(parent).map_or_else(Self::default, |p| Self::clone(p));
        match all.0.iter_mut().find(|e| *e.name == *name) {
            Some(entry) => entry.configs.push(config),
            None => all.0.push(Entry { name: name.into(), disabled: false, configs: vec![config] }),
        }
        Some(Arc::new(all))
    }

    pub(super) fn configs(&self, filter: &str) -> &[FilterConfig] {
        self.find(filter).map_or(&[], |e| &e.configs)
    }

    pub(super) fn disabled(&self, filter: &str) -> Option<bool> {
        self.find(filter).map(|e| e.disabled)
    }

    fn find(&self, filter: &str) -> Option<&Entry> {
        self.0.iter().find(|e| *e.name == *filter)
    }
}

/// Opens the `FilterConfig` wrapper if there is one. `None` is an optional filter that is unknown.
fn read_one(
    name: &str,
    message: &ProtoAny,
    read_config: &ReadFilterConfig<'_>,
) -> Result<Option<(bool, Option<FilterConfig>)>, ConfigError> {
    let empty = || ConfigError::new("", format!("Empty route/virtual host per filter configuration for {name} filter"));
    let wrapper;
    let (inner, optional) = if type_name(&message.type_url) == "envoy.config.route.v3.FilterConfig" {
        wrapper = unpack::<FilterConfigProto>(message)?;
        if wrapper.disabled {
            return Ok(Some((true, None)));
        }
        (wrapper.config.as_ref().ok_or_else(empty)?, wrapper.is_optional)
    } else {
        (message, false)
    };
    if inner.type_url.is_empty() {
        return Err(empty());
    }
    match read_config(name, inner)? {
        Some(config) => Ok(Some((false, Some(config)))),
        None if optional => Ok(None),
        None => Err(unknown(name, inner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::prost::Message;

    fn text(value: &str) -> ProtoAny {
        ProtoAny { type_url: "x/test.Text".into(), value: value.as_bytes().to_vec() }
    }

    fn wrap(wrapper: FilterConfigProto) -> ProtoAny {
        ProtoAny { type_url: "x/envoy.config.route.v3.FilterConfig".into(), value: wrapper.encode_to_vec() }
    }

    fn read_text(name: &str, any: &ProtoAny) -> Result<Option<FilterConfig>, ConfigError> {
        Ok((name == "known").then(|| Arc::new(String::from_utf8_lossy(&any.value).into_owned()) as FilterConfig))
    }

    fn level(
        parent: Option<&Arc<FilterConfigs>>,
        name: &str,
        any: ProtoAny,
    ) -> Result<Arc<FilterConfigs>, ConfigError> {
        FilterConfigs::extend(parent, &HashMap::from([(name.to_owned(), any)]), &read_text).map(Option::unwrap)
    }

    fn texts(configs: &FilterConfigs) -> Vec<String> {
        configs.configs("known").iter().map(|c| c.downcast_ref::<String>().unwrap().clone()).collect()
    }

    #[test]
    fn levels_add_up_and_the_last_word_on_disabled_counts() {
        let general = level(None, "known", text("config")).unwrap();
        let off =
            level(Some(&general), "known", wrap(FilterConfigProto { disabled: true, ..Default::default() })).unwrap();
        let inner = FilterConfigProto { config: Some(text("route")), ..Default::default() };
        let route = level(Some(&off), "known", wrap(inner)).unwrap();
        assert_eq!((texts(&general), general.disabled("known")), (vec!["config".to_owned()], Some(false)));
        assert_eq!(off.disabled("known"), Some(true));
        assert_eq!(
            (texts(&route), route.disabled("known")),
            (vec!["config".to_owned(), "route".to_owned()], Some(false))
        );
        assert_eq!(route.disabled("other"), None);
    }

    #[test]
    fn unknown_filters_are_errors_unless_optional() {
        let error = level(None, "nope", text("x")).err().unwrap();
        assert_eq!(error.path, "typed_per_filter_config[nope]");
        assert_eq!(error.reason, "Didn't find a registered implementation for 'nope' with type URL: 'test.Text'");
        let optional = FilterConfigProto { config: Some(text("x")), is_optional: true, disabled: false };
        assert_eq!(level(None, "nope", wrap(optional)).unwrap().disabled("nope"), None);
        let empty = level(None, "known", wrap(FilterConfigProto::default())).err().unwrap();
        assert_eq!(empty.reason, "Empty route/virtual host per filter configuration for known filter");
    }
}
