//! `/config_dump`: the configuration that is in effect, section by section, secrets redacted.
//!
//! Resources are kept as the bytes that were checked, and are printed from those, one at a time and on another thread:
//! a dump of ten thousand clusters holds one of them as text. What is asked for is decided before: which sections or
//! which list of one section ([`Selection`]), and what of them ([`FieldMask`]).

use std::cell::RefCell;
use std::fmt;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use nuncio_api::FieldMask;
use nuncio_api::dump::JsonWriter;
use regex::Regex;
use serde_json::Value;

use super::clusters::ClusterSource;
use super::{Answer, Chunks, ContentType, Page, Param, ParamKind, Query};
use crate::tls::secret::SecretView;
use crate::upstream::ClusterSnapshot;
use sections::{Element, SECTIONS, Section};

mod endpoints;
mod sections;

/// What is configured, encoded.
#[derive(Debug)]
pub struct Configs {
    /// Without clusters, listeners and secrets, which stand below.
    pub bootstrap: Bytes,
    pub clusters: Vec<Bytes>,
    pub listeners: Vec<Bytes>,
    pub secrets: Vec<Bytes>,
    /// When it was loaded, since 1970.
    pub loaded: Duration,
}

/// What came while the server runs, as main knows it.
#[derive(Debug, Default)]
pub struct Shown {
    pub clusters_version: String,
    pub listeners_version: String,
    pub listeners: Vec<ShownListener>,
}

#[derive(Debug, Clone)]
pub struct ShownListener {
    pub name: String,
    pub version: Arc<str>,
    pub bytes: Bytes,
    pub updated: Option<SystemTime>,
}

/// What came while the server runs, for one dump.
#[derive(Debug, Default)]
pub struct Dynamic {
    pub clusters_version: String,
    pub listeners_version: String,
    pub clusters: Vec<DynamicResource>,
    pub warming_clusters: Vec<DynamicResource>,
    pub listeners: Vec<DynamicResource>,
    pub routes: Vec<DynamicResource>,
    pub scopes: Vec<DynamicScopes>,
    /// None: no filter's configuration comes by itself.
    pub filters: Option<Vec<DynamicResource>>,
    pub secrets: Vec<SecretView>,
}

#[derive(Debug, Clone)]
pub struct DynamicResource {
    pub version: Arc<str>,
    pub bytes: Bytes,
    /// Since 1970.
    pub updated: Duration,
}

/// The scopes of routes of one connection manager.
#[derive(Debug, Clone)]
pub struct DynamicScopes {
    pub name: String,
    pub version: String,
    pub scopes: Vec<Bytes>,
    /// Since 1970.
    pub updated: Duration,
}

const PARAMS: &[Param] = &[
    Param { name: "resource", help: "one list of resources, e.g. static_clusters", kind: ParamKind::Text },
    Param { name: "mask", help: "fields to print, separated by commas, e.g. cluster.name", kind: ParamKind::Text },
    Param { name: "name_regex", help: "regular expression for the names of resources", kind: ParamKind::Text },
    Param { name: "include_eds", help: "endpoints too", kind: ParamKind::Flag },
];

pub fn pages(
    configs: &Rc<RefCell<Arc<Configs>>>,
    clusters: &ClusterSource,
    dynamic: Rc<dyn Fn() -> Dynamic>,
) -> Vec<Page> {
    let (configs, clusters) = (configs.clone(), clusters.clone());
    let dump = move |query: &Query| {
        let clusters = if query.has("include_eds") { clusters() } else { Vec::new() };
        answer(Dump { configs: configs.borrow().clone(), dynamic: dynamic(), clusters }, query)
    };
    vec![Page::new("/config_dump", "dump current configuration", dump).with_params(PARAMS)]
}

/// All that a dump may show.
struct Dump {
    configs: Arc<Configs>,
    dynamic: Dynamic,
    /// For their endpoints.
    clusters: Vec<Arc<ClusterSnapshot>>,
}

fn answer(dump: Dump, query: &Query) -> Answer {
    match Selection::new(&dump, query) {
        Ok(selection) => Answer::rendered(ContentType::Json, move |out| selection.write(&dump, out)),
        Err((status, reason)) => Answer::error(status, reason),
    }
}

/// What of the dump is wanted.
struct Selection {
    what: What,
    name: Option<Regex>,
    mask: Option<FieldMask>,
}

enum What {
    Sections(Vec<&'static Section>),
    /// The elements of a list, each as if it were a section.
    List(&'static Section, &'static str, &'static str),
}

type Refusal = (StatusCode, String);

// === impl Selection ===

impl Selection {
    fn new(dump: &Dump, query: &Query) -> Result<Selection, Refusal> {
        let name = query.text("name_regex").map(name_regex).transpose()?;
        let mask = query.text("mask").map(FieldMask::parse);
        let sections = SECTIONS.iter().filter(|s| s.is_there(dump, query.has("include_eds")));
        let what = match query.text("resource") {
            Some(resource) => find_list(sections, resource)?,
            None => What::Sections(sections.collect()),
        };
        let mut selection = Selection { what, name, mask };
        if let Some(mask) = &selection.mask {
            let text = query.text("mask").unwrap_or_default();
            selection.what = fitting(mask, text, selection.what, dump)?;
        }
        Ok(selection)
    }

    fn wants(&self, element: &Element<'_>) -> bool {
        self.name.as_ref().is_none_or(|name| name.is_match(&element.name()))
    }

    /// `envoy.admin.v3.ConfigDump`.
    fn write(&self, dump: &Dump, out: &mut Chunks) -> fmt::Result {
        let mut json = JsonWriter::default();
        match &self.what {
            What::Sections(sections) => {
                begin(&mut json);
                for section in sections {
                    match &self.mask {
                        Some(mask) => self.write_masked_section(section, mask, dump, &mut json)?,
                        None => self.write_section(section, dump, &mut json, &mut Some(out))?,
                    }
                }
                json.end_list();
                json.end_object();
            }
            What::List(section, list, of) => {
                let elements = dump.elements(list);
                let mut elements = elements.iter().filter(|e| self.wants(e)).peekable();
                if elements.peek().is_none() {
                    return out.write_str("{}\n");
                }
                begin(&mut json);
                for element in elements {
                    self.write_element_alone(dump, section, of, element, &mut json);
                    pass_on(&mut json, out)?;
                }
                json.end_list();
                json.end_object();
            }
        }
        writeln!(out, "{}", json.take())
    }

    /// Without `out` everything stays in the writer.
    fn write_section(
        &self,
        section: &Section,
        dump: &Dump,
        json: &mut JsonWriter,
        out: &mut Option<&mut Chunks>,
    ) -> fmt::Result {
        json.begin_object();
        json.key("@type");
        json.string(&section.type_url());
        if section.is_bootstrap() {
            dump.configs.write_bootstrap(json, out)?;
        }
        if let Some(version) = section.version(dump) {
            json.key("version_info");
            json.string(version);
        }
        for (list, _) in section.lists {
            let elements = dump.elements(list);
            let mut elements = elements.iter().filter(|e| self.wants(e)).peekable();
            if elements.peek().is_none() {
                continue;
            }
            json.key(list);
            json.begin_list();
            for element in elements {
                json.begin_object();
                element.write_fields(dump, json);
                json.end_object();
                if let Some(out) = out {
                    pass_on(json, out)?;
                }
            }
            json.end_list();
        }
        json.end_object();
        Ok(())
    }

    fn write_masked_section(
        &self,
        section: &Section,
        mask: &FieldMask,
        dump: &Dump,
        json: &mut JsonWriter,
    ) -> fmt::Result {
        let mut whole = JsonWriter::default();
        self.write_section(section, dump, &mut whole, &mut None)?;
        let mut value = parse(&mut whole);
        mask.trim(&mut value);
        json.value(&value);
        Ok(())
    }

    fn write_element_alone(
        &self,
        dump: &Dump,
        section: &Section,
        of: &str,
        element: &Element<'_>,
        json: &mut JsonWriter,
    ) {
        let mut value = element_value(dump, section, of, element);
        if let Some(mask) = &self.mask {
            mask.trim(&mut value);
        }
        json.value(&value);
    }
}

fn name_regex(pattern: &str) -> Result<Regex, Refusal> {
    // The whole name, as in Envoy. The pattern is compiled alone first: it must not close the group around it.
    let whole = Regex::new(pattern).and_then(|_| Regex::new(&format!("^(?:{pattern})$")));
    whole.map_err(|e| {
        let reason = e.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
        let text = format!("INVALID_ARGUMENT: Error while parsing name_regex from {pattern}: {reason}");
        (StatusCode::BAD_REQUEST, text)
    })
}

fn find_list(sections: impl Iterator<Item = &'static Section>, resource: &str) -> Result<What, Refusal> {
    for section in sections {
        if let Some((list, of)) = section.lists.iter().find(|(list, _)| *list == resource) {
            return Ok(What::List(section, list, of));
        }
        if section.single.contains(&resource) {
            let text = format!("{resource} is not a repeated field. Use ?mask={resource} to get only this field");
            return Err((StatusCode::BAD_REQUEST, text));
        }
    }
    Err((StatusCode::NOT_FOUND, format!("{resource} not found in config dump")))
}

/// The sections that have all fields of the mask, of which there must be one; elements must have them.
fn fitting(mask: &FieldMask, text: &str, what: What, dump: &Dump) -> Result<What, Refusal> {
    match what {
        What::Sections(mut sections) => {
            sections.retain(|s| mask.fits(&s.message(), &Value::Null));
            if sections.is_empty() {
                let text = format!("FieldMask {text} could not be successfully applied to any configs.");
                return Err((StatusCode::BAD_REQUEST, text));
            }
            Ok(What::Sections(sections))
        }
        What::List(section, list, of) => {
            let fits = |e: &Element<'_>| {
                let name = format!("{}.{of}", section.message());
                mask.fits(&name, &element_value(dump, section, of, e))
            };
            // All are of one type, so one stands for all.
            match dump.elements(list).first().is_none_or(fits) {
                true => Ok(What::List(section, list, of)),
                false => Err((StatusCode::BAD_REQUEST, format!("FieldMask {text} could not be successfully used."))),
            }
        }
    }
}

fn element_value(dump: &Dump, section: &Section, of: &str, element: &Element<'_>) -> Value {
    let mut json = JsonWriter::default();
    json.begin_object();
    json.key("@type");
    json.string(&format!("{}.{of}", section.type_url()));
    element.write_fields(dump, &mut json);
    json.end_object();
    parse(&mut json)
}

fn parse(json: &mut JsonWriter) -> Value {
    serde_json::from_str(&json.take()).unwrap_or_default()
}

fn begin(json: &mut JsonWriter) {
    json.begin_object();
    json.key("configs");
    json.begin_list();
}

/// Lets go of what was written, once that is much.
fn pass_on(json: &mut JsonWriter, out: &mut Chunks) -> fmt::Result {
    const MUCH: usize = 32 * 1024;
    if json.len() < MUCH { Ok(()) } else { out.write_str(&json.take()) }
}

#[cfg(test)]
mod tests;
