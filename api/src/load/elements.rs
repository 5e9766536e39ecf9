//! The clusters, listeners and secrets of a bootstrap, each on its own.

use std::marker::PhantomData;

use prost::bytes::Bytes;
use prost::{Message, Name};

use super::Run;
use crate::any::decode;
use crate::diag::{ConfigError, Findings, Path};
use crate::encode::{Cut, Encoder, Whole};
use crate::pb::envoy::config::cluster::v3::Cluster;
use crate::pb::envoy::config::listener::v3::Listener;
use crate::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use crate::read::Node;
use crate::shape::{Field, Shape};
use crate::unknown::UnknownFields;
use crate::wire::{put, put_with, split};

/// One checked resource of the bootstrap, encoded. Decode it, build from it, drop the decoded form; the bytes stay for
/// `/config_dump`.
#[derive(Debug)]
pub struct Element<T> {
    pub bytes: Bytes,
    list: &'static str,
    index: u32,
    source: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Element<T> {
    /// `static_resources.clusters[2]`, in the source that it comes from.
    pub fn path(&self) -> String {
        format!("static_resources.{}[{}]", self.list, self.index)
    }

    pub(crate) fn source(&self) -> usize {
        self.source as usize
    }
}

impl<T: Message + Name + Default> Element<T> {
    pub fn decode(&self) -> Result<T, ConfigError> {
        decode(&self.bytes)
    }
}

#[derive(Default)]
pub(super) struct Elements {
    pub(super) clusters: Vec<Element<Cluster>>,
    pub(super) listeners: Vec<Element<Listener>>,
    pub(super) secrets: Vec<Element<Secret>>,
}

/// Fields of StaticResources whose elements do not stay in it: number, name.
const LISTS: [(u32, &str); 3] = [(1, "listeners"), (2, "clusters"), (3, "secrets")];

const STATIC_RESOURCES: u32 = 2;

impl Elements {
    fn push(&mut self, list: u32, index: usize, source: usize, bytes: Vec<u8>) {
        let (bytes, index, source) = (Bytes::from(bytes.into_boxed_slice()), index as u32, source as u32);
        match list {
            1 => self.listeners.push(Element { bytes, list: "listeners", index, source, of: PhantomData }),
            2 => self.clusters.push(Element { bytes, list: "clusters", index, source, of: PhantomData }),
            _ => self.secrets.push(Element { bytes, list: "secrets", index, source, of: PhantomData }),
        }
    }

    pub(super) fn cut<'c, 'o>(
        &'c mut self,
        source: usize,
        last_key_wins: bool,
        run: &'c mut Run<'o>,
    ) -> CutElements<'c, 'o> {
        CutElements { elements: self, source, last_key_wins, run }
    }

    /// Takes the elements out of an encoded bootstrap; returns the rest.
    pub(super) fn cut_encoded(&mut self, bytes: &[u8], source: usize, run: &mut Run<'_>) -> Vec<u8> {
        let Ok((mut rest, parts)) = split(bytes, &[STATIC_RESOURCES]) else { return bytes.to_vec() };
        let shape = super::bootstrap_shape();
        let Some(resources) = shape.field_numbered(STATIC_RESOURCES).and_then(|i| shape.fields[i].message()) else {
            return bytes.to_vec();
        };
        let mut counts = [0; 3];
        for (_, part) in parts {
            let Ok((others, elements)) = split(part, &LISTS.map(|(number, _)| number)) else { return bytes.to_vec() };
            put_with(&mut rest, STATIC_RESOURCES, |out| out.extend_from_slice(&others));
            for (number, element) in elements {
                let index = counts[number as usize - 1];
                counts[number as usize - 1] += 1;
                if let Some(inner) = element_shape(resources, number) {
                    let path = element_path(number, index);
                    run.walk_at(Findings::default(), element, inner, source, &path);
                    self.push(number, index, source, element.to_vec());
                }
            }
        }
        rest
    }
}

/// Appends the lists to an encoded bootstrap.
pub(super) fn put_back(
    listeners: &[Element<Listener>],
    clusters: &[Element<Cluster>],
    secrets: &[Element<Secret>],
    out: &mut Vec<u8>,
) {
    if listeners.is_empty() && clusters.is_empty() && secrets.is_empty() {
        return;
    }
    put_with(out, STATIC_RESOURCES, |out| {
        listeners.iter().for_each(|e| put(out, LISTS[0].0, &e.bytes));
        clusters.iter().for_each(|e| put(out, LISTS[1].0, &e.bytes));
        secrets.iter().for_each(|e| put(out, LISTS[2].0, &e.bytes));
    });
}

fn element_shape(resources: &'static Shape, number: u32) -> Option<&'static Shape> {
    resources.field_numbered(number).and_then(|i| resources.fields[i].message())
}

fn element_path(number: u32, index: usize) -> String {
    let name = LISTS.iter().find(|(n, _)| *n == number).map_or("", |(_, name)| name);
    format!("static_resources.{name}[{index}]")
}

pub(super) struct CutElements<'c, 'o> {
    elements: &'c mut Elements,
    source: usize,
    last_key_wins: bool,
    run: &'c mut Run<'o>,
}

impl CutElements<'_, '_> {
    pub(super) fn unknown(&self) -> UnknownFields {
        self.run.options.unknown
    }
}

impl Cut for CutElements<'_, '_> {
    fn take(&mut self, field: &Field, index: usize, node: Node<'_>) -> bool {
        if *field.parent != *"envoy.config.bootstrap.v3.Bootstrap.StaticResources" {
            return false;
        }
        let Some(shape) = field.message().filter(|_| LISTS.iter().any(|(n, _)| *n == field.number)) else {
            return false;
        };
        let path = element_path(field.number, index);
        let mut findings = Findings::default();
        let mut bytes = Vec::new();
        let (unknown, last_key_wins) = (self.unknown(), self.last_key_wins);
        let mut encoder = Encoder { findings: &mut findings, unknown, unknown_seen: 0, cut: &mut Whole, last_key_wins };
        if node.kind() != crate::read::Kind::Null {
            encoder.message(node, shape, &Path::Root(&path), &mut bytes);
        }
        self.run.unknown_fields += encoder.unknown_seen;
        self.run.walk_at(findings, &bytes, shape, self.source, &path);
        self.elements.push(field.number, index, self.source, bytes);
        true
    }
}
