//! Brings secrets from their sources, and looks again when their files are replaced.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3::data_source::Specifier;
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::{self as pb, secret::Type};
use nuncio_core::error::ConfigError;
use nuncio_core::stats::lists::tls::{self as stat, SDS_SCOPE, Sds, SocketFactory};
use nuncio_core::stats::{Stats, Store};
use nuncio_discovery::SourceContext;
use nuncio_discovery::xds::{Files, News, Subscription, Watched};

use super::{Asked, Secrets, lock, try_out};
use crate::tls::source;

/// What one secret counts: `sds.<name>.`
struct Counts {
    store: Rc<RefCell<Store>>,
    stats: Stats<Sds>,
}

/// A secret as its source says it, with the files it names watched.
struct Raw {
    secret: pb::Secret,
    version: String,
    files: Vec<Watched>,
}

impl Secrets {
    /// Fetches what contexts ask for, for ever.
    pub async fn fetch(self, context: SourceContext, store: Rc<RefCell<Store>>) {
        loop {
            let news = self.0.news.notified();
            let wishes = std::mem::take(&mut lock(&self.0.state).wishes);
            for asked in wishes {
                tokio::task::spawn_local(follow(self.clone(), asked, context.clone(), store.clone()));
            }
            news.await;
        }
    }
}

/// One secret's life.
async fn follow(secrets: Secrets, asked: Arc<Asked>, context: SourceContext, store: Rc<RefCell<Store>>) {
    let counts = Counts::new(store, &asked.name);
    let mut subscription = Subscription::<pb::Secret>::new(&asked.source, vec![asked.name.to_string()], &context);
    let mut raw: Option<Raw> = None;
    loop {
        let files = raw.as_ref().map_or(&[][..], |raw| &raw.files);
        let news = tokio::select! {
            news = subscription.next() => Some(news),
            () = any_changed(files) => None,
        };
        match news {
            None => {
                if let Some(raw) = &raw {
                    let loaded = load(raw.secret.clone()).await;
                    if let Err(error) = loaded.map(|secret| counts.took(&asked, secret, raw.version.clone(), &context))
                    {
                        counts.stats.inc(stat::KEY_ROTATION_FAILED);
                        tracing::warn!(
                            resource = &*asked.name,
                            "Failed to reload certificates: {error}; the old ones stay"
                        );
                    }
                }
            }
            Some(news) => {
                if let Some(taken) = take(news, &asked, &counts, &context, &mut subscription).await {
                    raw = Some(taken);
                }
            }
        }
        if !lock(&asked.current).settled {
            lock(&asked.current).settled = true;
            secrets.0.news.notify_waiters();
        }
    }
}

/// What the source said; the new secret, if it is one.
async fn take(
    news: News<pb::Secret>,
    asked: &Arc<Asked>,
    counts: &Counts,
    context: &SourceContext,
    subscription: &mut Subscription<pb::Secret>,
) -> Option<Raw> {
    if !matches!(news, News::InitFetchTimeout) {
        counts.stats.inc(stat::UPDATE_ATTEMPT);
    }
    let refused = |reason: String| {
        counts.stats.inc(stat::UPDATE_REJECTED);
        tracing::warn!(resource = &*asked.name, "the secret is refused: {reason}");
    };
    match news {
        News::Update(update) => {
            let version = update.version.clone();
            let Some(found) = update.resources.into_iter().find(|one| *one.message.name == *asked.name) else {
                refused(format!("there is none called '{}' in the answer", asked.name));
                return None;
            };
            let secret = found.message;
            // Watched before they are read: what changes in between is looked at again.
            let files = watch(&secret, &context.files);
            match load(secret.clone()).await {
                Ok(loaded) => {
                    counts.took(asked, loaded, version.clone(), context);
                    counts.stats.inc(stat::UPDATE_SUCCESS);
                    subscription.accepted(&version);
                }
                Err(error) => refused(error.to_string()),
            }
            return Some(Raw { secret, version, files });
        }
        News::Rejected(reason) => refused(reason),
        News::Failed(reason) => {
            counts.stats.inc(stat::UPDATE_FAILURE);
            tracing::warn!(resource = &*asked.name, "the secret cannot be fetched: {reason}");
        }
        News::InitFetchTimeout => counts.stats.inc(stat::INIT_FETCH_TIMEOUT),
        News::Unchanged => {}
    }
    None
}

// === impl Counts ===

impl Counts {
    fn new(store: Rc<RefCell<Store>>, name: &Arc<str>) -> Self {
        let stats = {
            let mut store = store.borrow_mut();
            let scope = store.scope(&SDS_SCOPE, name);
            Stats::new(store.main(), scope)
        };
        Self { store, stats }
    }

    /// A secret that was tried.
    fn took(&self, asked: &Asked, secret: pb::Secret, version: String, context: &SourceContext) {
        let millis = context.clock.now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let now = std::time::UNIX_EPOCH + Duration::from_millis(millis);
        for (scope, side) in asked.set(Arc::new(secret), version, now) {
            let main = self.store.borrow().main().clone();
            Stats::<SocketFactory>::under(&main, scope, side).inc(stat::SSL_CONTEXT_UPDATE_BY_SDS);
        }
        self.stats.set(stat::UPDATE_TIME, millis);
    }
}

async fn any_changed(files: &[Watched]) {
    if files.is_empty() {
        return std::future::pending().await;
    }
    let each = files.iter().map(|file| Box::pin(file.changed()));
    futures_util::future::select_all(each).await;
}

/// The files, or the directory that the configuration names instead.
fn watch(secret: &pb::Secret, files: &Files) -> Vec<Watched> {
    let directory = match &secret.r#type {
        Some(Type::TlsCertificate(certificate)) => certificate.watched_directory.as_ref(),
        Some(Type::ValidationContext(context)) => context.watched_directory.as_ref(),
        _ => None,
    };
    let mut watched: Vec<Watched> =
        directory.into_iter().map(|directory| files.watch_directory(Path::new(&directory.path))).collect();
    for source in source::of_secret(&mut secret.clone()) {
        if let Some(Specifier::Filename(path)) = &source.specifier {
            watched.push(files.watch(&PathBuf::from(path)));
        }
    }
    watched
}

/// The secret with the content of its files, if that is one.
async fn load(mut secret: pb::Secret) -> Result<pb::Secret, ConfigError> {
    let reading = tokio::task::spawn_blocking(move || {
        source::read_all(source::of_secret(&mut secret))?;
        try_out(&secret).map(|()| secret)
    });
    reading.await.unwrap_or_else(|e| Err(ConfigError::new("", e.to_string())))
}
