//! The one way by which resources come in, whatever brings them: a consumer asks for the next news, and says of each
//! update whether it took it. A source that cannot be asked, an answer that cannot be read and an update that was
//! refused are told apart, and none of them takes away what was known.

use std::marker::PhantomData;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use nuncio_api::any::{decode, open_as};
use nuncio_api::pb::envoy::service::discovery::v3::DiscoveryResponse;
use nuncio_api::wire::{Wire, fields};
use nuncio_core::error::ConfigError;
use tokio::time::{Instant, sleep_until};

use super::config_source::ConfigSource;
use super::fetch::{FetchError, Fetcher};
use super::resource::{Decoded, Event, Resource, ResourceHandler, Update, told};
use crate::SourceContext;

/// Resources of one kind from one source. Dropped, it ends.
pub struct Subscription<R> {
    /// Whoever asks, while nobody is asked.
    fetcher: Option<Fetcher>,
    /// The question that is under way: it goes on while its consumer looks elsewhere.
    asked: Option<LocalBoxFuture<'static, (Fetcher, Outcome)>>,
    /// Until the first news: when its consumer should wait no longer.
    waiting: Option<Instant>,
    kind: PhantomData<R>,
}

type Outcome = Result<Option<DiscoveryResponse>, FetchError>;

/// What a source has to say.
#[derive(Debug, Clone, PartialEq)]
pub enum News<R> {
    Update(Update<R>),
    /// It answered that nothing is new.
    Unchanged,
    /// Nobody answered.
    Failed(String),
    /// The answer cannot be read.
    Rejected(String),
    /// Nothing yet, and whoever waited for the first news has waited long enough. Said once at most.
    InitFetchTimeout,
}

impl<R: Resource> Subscription<R> {
    /// `names`: which resources; none: all there are.
    pub fn new(source: &ConfigSource, names: Vec<String>, context: &SourceContext) -> Self {
        let fetcher = Fetcher::new::<R>(source, names, context);
        let waiting = source.initial_fetch_timeout.map(|limit| Instant::now() + limit);
        Self { fetcher: Some(fetcher), asked: None, waiting, kind: PhantomData }
    }

    /// The next news, when there are any. May be dropped at any time, and nothing is lost.
    pub async fn next(&mut self) -> News<R> {
        if let Some(mut fetcher) = self.fetcher.take() {
            self.asked = Some(Box::pin(async move {
                let outcome = fetcher.next().await;
                (fetcher, outcome)
            }));
        }
        let Some(asked) = &mut self.asked else { return std::future::pending().await };
        let (fetcher, outcome) = tokio::select! {
            biased;
            fetched = asked => fetched,
            () = at(self.waiting) => {
                self.waiting = None;
                return News::InitFetchTimeout;
            }
        };
        self.asked = None;
        self.fetcher = Some(fetcher);
        self.waiting = None;
        match outcome {
            Ok(None) => News::Unchanged,
            Ok(Some(response)) => match update(&response) {
                Ok(update) => News::Update(update),
                Err(reason) => News::Rejected(reason),
            },
            Err(FetchError::Failure(reason)) => News::Failed(reason),
            Err(FetchError::Rejected(reason)) => News::Rejected(reason),
        }
    }

    /// The last update was taken.
    pub fn accepted(&mut self, version: &str) {
        if let Some(fetcher) = &mut self.fetcher {
            fetcher.accepted(version);
        }
    }

    /// Brings everything to a handler, for ever.
    pub async fn serve(mut self, handler: Rc<dyn ResourceHandler<R>>) {
        loop {
            let news = self.next().await;
            if let News::InitFetchTimeout = news {
                handler.on_event(Event::InitFetchTimeout);
                continue;
            }
            handler.on_event(Event::Attempt);
            match news {
                News::Update(update) => {
                    let version = update.version.clone();
                    match handler.on_update(update) {
                        Ok(()) => {
                            self.accepted(&version);
                            handler.on_event(Event::Success { version });
                        }
                        Err(rejected) => handler.on_event(Event::Rejected(told(&rejected))),
                    }
                }
                News::Failed(reason) => handler.on_event(Event::Failure(reason)),
                News::Rejected(reason) => handler.on_event(Event::Rejected(reason)),
                News::Unchanged | News::InitFetchTimeout => {}
            }
        }
    }
}

/// The resources of an answer, all of one kind.
fn update<R: Resource>(response: &DiscoveryResponse) -> Result<Update<R>, String> {
    let read = |any| {
        let bytes = open_as::<R>(any)?.into_owned();
        if elements(&bytes, R::ELEMENTS) > MOST_ELEMENTS {
            return Err(ConfigError::new("", format!("more than {MOST_ELEMENTS} elements")));
        }
        decode(&bytes).map(|message| Decoded { message, bytes: bytes.into() })
    };
    let each = response.resources.iter().enumerate();
    let resources = each.map(|(i, any)| read(any).map_err(|e| e.within(&format!("resources[{i}]")).to_string()));
    Ok(Update { version: response.version_info.clone(), resources: resources.collect::<Result<_, String>>()? })
}

/// What is larger is decoded for nobody.
const MOST_ELEMENTS: usize = 1_000_000;

/// How many there are at the end of that way through an encoded message.
fn elements(encoded: &[u8], way: &[u32]) -> usize {
    let Some((number, rest)) = way.split_first() else { return 1 };
    let each = fields(encoded).flatten().filter(|(field, ..)| field == number);
    each.map(|(_, value, _)| if let Wire::Bytes(inner) = value { elements(inner, rest) } else { 0 }).sum()
}

pub(crate) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::scripted::Scripted;
    use crate::sources::testing::context;
    use crate::xds::Rejected;
    use crate::xds::config_source::{FileSource, From};
    use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
    use nuncio_api::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
    use nuncio_api::pb::google::protobuf::Any;
    use nuncio_api::prost::Message;
    use std::cell::RefCell;
    use std::fs;
    use std::path::Path;

    fn put(path: &Path, version: &str, names: &[&str]) {
        let resource =
            |name: &&str| format!("{{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: {name}}}");
        let resources: Vec<_> = names.iter().map(resource).collect();
        let new = path.with_extension("new");
        fs::write(&new, format!("version_info: '{version}'\nresources: [{}]\n", resources.join(", "))).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn source(path: &Path) -> ConfigSource {
        let from = From::File(FileSource { path: path.to_owned(), watched_directory: None });
        ConfigSource { from, initial_fetch_timeout: None }
    }

    /// Takes all but clusters called `bad`.
    struct Taker {
        said: RefCell<Vec<String>>,
        heard: tokio::sync::Notify,
    }

    impl ResourceHandler<Cluster> for Taker {
        fn on_update(&self, update: Update<Cluster>) -> Result<(), Vec<Rejected>> {
            let names = update.resources.iter().map(|resource| resource.message.resource_name().to_owned());
            let (bad, good): (Vec<_>, Vec<_>) = names.partition(|name| name == "bad");
            self.said.borrow_mut().push(format!("{}: {}", update.version, good.join(" ")));
            let reject = |name: String| Rejected { name, error: ConfigError::new("lb_policy", "no") };
            if bad.is_empty() { Ok(()) } else { Err(bad.into_iter().map(reject).collect()) }
        }

        fn on_event(&self, event: Event) {
            if event != Event::Attempt {
                self.said.borrow_mut().push(format!("{event:?}"));
                self.heard.notify_one();
            }
        }
    }

    #[tokio::test(flavor = "local")]
    async fn a_handler_hears_each_update_and_what_became_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cds.yaml");
        put(&path, "1", &["a", "b"]);
        let subscription = Subscription::<Cluster>::new(&source(&path), Vec::new(), &context(&Scripted::default()));
        let taker = Rc::new(Taker { said: RefCell::default(), heard: tokio::sync::Notify::new() });
        tokio::task::spawn_local(subscription.serve(taker.clone()));
        taker.heard.notified().await;
        put(&path, "2", &["a", "bad"]);
        taker.heard.notified().await;
        let expected = ["1: a b", r#"Success { version: "1" }"#, "2: a", r#"Rejected("bad: lb_policy: no")"#];
        assert_eq!(*taker.said.borrow(), expected);
    }

    #[test]
    fn endpoints_are_counted_before_they_are_decoded() {
        let group = |n| LocalityLbEndpoints { lb_endpoints: vec![LbEndpoint::default(); n], ..Default::default() };
        let assignment = ClusterLoadAssignment { endpoints: vec![group(3), group(4)], ..Default::default() };
        let encoded = assignment.encode_to_vec();
        assert_eq!(elements(&encoded, ClusterLoadAssignment::ELEMENTS), 7);
        assert!(elements(&encoded, Cluster::ELEMENTS) <= MOST_ELEMENTS);
        // An endpoint that says nothing is two bytes.
        let group = [0x12, 0x00].repeat(MOST_ELEMENTS + 1);
        let mut value = Vec::new();
        nuncio_api::wire::put(&mut value, 2, &group);
        let type_url = format!("type.googleapis.com/{}", ClusterLoadAssignment::TYPE);
        let response = DiscoveryResponse { resources: vec![Any { type_url, value }], ..Default::default() };
        assert_eq!(update::<ClusterLoadAssignment>(&response).unwrap_err(), "resources[0]: more than 1000000 elements");
    }

    #[tokio::test(flavor = "local")]
    async fn an_update_is_of_one_kind_and_a_broken_file_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("eds.yaml");
        put(&path, "1", &["a"]);
        let context = context(&Scripted::default());
        let mut endpoints = Subscription::<ClusterLoadAssignment>::new(&source(&path), Vec::new(), &context);
        let News::Rejected(reason) = endpoints.next().await else { panic!("taken") };
        assert!(reason.starts_with("resources[0]: expected a envoy.config.endpoint"), "{reason}");
        fs::write(path.with_extension("new"), "resources: [{").unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        assert!(matches!(endpoints.next().await, News::Failed(_)));
    }
}
