//! One question for all who ask it at about the same time. A thousand clusters with the same target start together and
//! refresh together; the name server must not see a thousand questions.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, WeakShared};
use nuncio_core::dns::{DnsAnswer, DnsFailure, DnsResolver, IpFamily};
use nuncio_core::stats::lists::dns::{self as stat, Resolver as Counts};
use nuncio_core::stats::{Stats, Store};
use tokio::time::Instant;

use super::resolver::Resolver;
use super::{DnsResolvers, ResolverConfig};

type Outcome = Result<Arc<DnsAnswer>, DnsFailure>;

/// All resolvers of the process, one for each configuration.
pub struct SharedResolvers {
    /// For those who say nothing of resolvers.
    default: Rc<ResolverConfig>,
    known: RefCell<HashMap<Rc<ResolverConfig>, Rc<dyn DnsResolver>>>,
    store: Rc<RefCell<Store>>,
    stats: OnceCell<Rc<Stats<Counts>>>,
    reach: Reach,
}

/// Whether this machine has an address of the family besides the loopback.
pub type Reach = fn(IpFamily) -> bool;

impl SharedResolvers {
    pub fn new(default: Rc<ResolverConfig>, store: &Rc<RefCell<Store>>, reach: Reach) -> Self {
        Self { default, known: RefCell::default(), store: store.clone(), stats: OnceCell::new(), reach }
    }

    fn stats(&self) -> Rc<Stats<Counts>> {
        let make = || {
            let mut store = self.store.borrow_mut();
            let scope = store.scope(&stat::SCOPE, &Arc::default());
            Rc::new(Stats::new(store.main(), scope))
        };
        self.stats.get_or_init(make).clone()
    }
}

impl DnsResolvers for SharedResolvers {
    fn resolver(&self, config: Option<&Rc<ResolverConfig>>) -> Rc<dyn DnsResolver> {
        let config = config.unwrap_or(&self.default);
        let mut known = self.known.borrow_mut();
        let make = || -> Rc<dyn DnsResolver> {
            let counted = Counted { inner: Resolver::new(config.clone()), stats: self.stats() };
            let shared = Shared::new(counted);
            if config.only_reachable_families {
                Rc::new(Reachable { inner: shared, reach: self.reach })
            } else {
                Rc::new(shared)
            }
        };
        known.entry(config.clone()).or_insert_with(make).clone()
    }
}

/// Counts the questions that are asked.
struct Counted<R> {
    inner: R,
    stats: Rc<Stats<Counts>>,
}

impl<R: DnsResolver> DnsResolver for Counted<R> {
    fn resolve(&self, name: &Arc<str>, family: IpFamily, max_age: Duration) -> LocalBoxFuture<'static, Outcome> {
        self.stats.inc(stat::RESOLVE_TOTAL);
        let pending = self.stats.gauge(stat::PENDING_RESOLUTIONS);
        let (stats, asking) = (self.stats.clone(), self.inner.resolve(name, family, max_age));
        Box::pin(async move {
            let outcome = asking.await;
            drop(pending);
            match &outcome {
                Ok(answer) if answer.addresses.is_empty() => stats.inc(stat::NOT_FOUND),
                Ok(_) => {}
                Err(DnsFailure::Timeout) => stats.inc(stat::TIMEOUT),
                Err(DnsFailure::Server(_) | DnsFailure::Transport(_)) => stats.inc(stat::GET_ADDR_FAILURE),
            }
            outcome
        })
    }
}

/// Has no addresses of families that lead nowhere from here (`filter_unroutable_families`).
struct Reachable<R> {
    inner: R,
    reach: Reach,
}

impl<R: DnsResolver> DnsResolver for Reachable<R> {
    fn resolve(&self, name: &Arc<str>, family: IpFamily, max_age: Duration) -> LocalBoxFuture<'static, Outcome> {
        if (self.reach)(family) {
            return self.inner.resolve(name, family, max_age);
        }
        Box::pin(std::future::ready(Ok(Arc::default())))
    }
}

/// Puts equal questions together.
pub(super) struct Shared<R> {
    inner: R,
    questions: Rc<RefCell<HashMap<Question, State>>>,
    /// When that many are remembered, those that nobody needs are forgotten.
    sweep_at: Cell<usize>,
}

type Question = (Arc<str>, IpFamily);

enum State {
    Asked(WeakShared<LocalBoxFuture<'static, Outcome>>),
    Answered(Instant, Outcome),
}

impl<R: DnsResolver> Shared<R> {
    /// No one takes an older answer for a new one.
    const LONGEST: Duration = Duration::from_secs(1);

    pub(super) fn new(inner: R) -> Self {
        Self { inner, questions: Rc::default(), sweep_at: Cell::new(64) }
    }

    fn sweep(&self, questions: &mut HashMap<Question, State>) {
        if questions.len() < self.sweep_at.get() {
            return;
        }
        let now = Instant::now();
        questions.retain(|_, state| match state {
            State::Asked(weak) => weak.upgrade().is_some(),
            State::Answered(at, _) => now - *at <= Self::LONGEST,
        });
        self.sweep_at.set((questions.len() * 2).max(64));
    }
}

impl<R: DnsResolver> DnsResolver for Shared<R> {
    fn resolve(&self, name: &Arc<str>, family: IpFamily, max_age: Duration) -> LocalBoxFuture<'static, Outcome> {
        let question = (name.clone(), family);
        let mut questions = self.questions.borrow_mut();
        match questions.get(&question) {
            Some(State::Asked(weak)) => {
                if let Some(shared) = weak.upgrade() {
                    return shared.boxed_local();
                }
            }
            Some(State::Answered(at, outcome)) if at.elapsed() < max_age.min(Self::LONGEST) => {
                return std::future::ready(outcome.clone()).boxed_local();
            }
            Some(State::Answered(..)) | None => {}
        }
        self.sweep(&mut questions);
        let asking = self.inner.resolve(name, family, Duration::ZERO);
        let (known, asked) = (self.questions.clone(), question.clone());
        let asking = async move {
            let outcome = asking.await;
            known.borrow_mut().insert(asked, State::Answered(Instant::now(), outcome.clone()));
            outcome
        };
        let shared = asking.boxed_local().shared();
        if let Some(weak) = shared.downgrade() {
            questions.insert(question, State::Asked(weak));
        }
        shared.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::scripted::Scripted;
    use futures_util::future::join_all;

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn ten_thousand_who_ask_the_same_ask_once() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 60);
        names.delay(Duration::from_millis(3));
        let shared = Shared::new(names.clone());
        let name: Arc<str> = "a.test".into();
        let max_age = Duration::from_millis(100);
        let all = join_all((0..10_000).map(|_| shared.resolve(&name, IpFamily::V4, max_age))).await;
        assert!(all.iter().all(|outcome| outcome.as_ref().is_ok_and(|answer| answer.addresses.len() == 1)));
        assert_eq!(names.asked(), 1);
        tokio::time::sleep(Duration::from_millis(50)).await;
        shared.resolve(&name, IpFamily::V4, max_age).await.unwrap();
        assert_eq!(names.asked(), 1);
        // The other family, and a later time, are other questions.
        shared.resolve(&name, IpFamily::V6, max_age).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        shared.resolve(&name, IpFamily::V4, max_age).await.unwrap();
        assert_eq!(names.asked(), 3);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn questions_are_counted_by_what_came_of_them() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 60);
        names.fail("bad.test");
        names.delay(Duration::from_secs(3));
        let mut store = Store::new();
        let scope = store.scope(&stat::SCOPE, &Arc::default());
        let stats: Rc<Stats<Counts>> = Rc::new(Stats::new(store.main(), scope));
        let counted = Counted { inner: names, stats: stats.clone() };
        let ask = |name: &str| counted.resolve(&name.into(), IpFamily::V4, Duration::ZERO);
        let asked = join_all(["a.test", "bad.test", "none.test"].map(ask));
        let given_up = ask("a.test");
        let mut value = |name| store.total(&stat::SCOPE, name);
        assert_eq!(value("pending_resolutions"), 4);
        drop(given_up);
        asked.await;
        assert_eq!((value("resolve_total"), value("pending_resolutions")), (4, 0));
        assert_eq!((value("not_found"), value("timeout") + value("get_addr_failure")), (1, 1));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_family_without_a_way_out_has_no_addresses() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1", "::1"], 60);
        let reachable = Reachable { inner: names.clone(), reach: |family| family == IpFamily::V4 };
        let ask = |family| reachable.resolve(&"a.test".into(), family, Duration::ZERO);
        assert_eq!(ask(IpFamily::V6).await, Ok(Arc::default()));
        assert!(!ask(IpFamily::V4).await.unwrap().addresses.is_empty());
        assert_eq!(names.asked(), 1);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_question_that_all_took_back_is_asked_anew() {
        let names = Scripted::default();
        names.set("a.test", &["10.0.0.1"], 60);
        names.delay(Duration::from_secs(3));
        let shared = Shared::new(names.clone());
        let name: Arc<str> = "a.test".into();
        let given_up = shared.resolve(&name, IpFamily::V4, Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_secs(1), given_up).await.is_err());
        assert!(shared.resolve(&name, IpFamily::V4, Duration::ZERO).await.is_ok());
        assert_eq!(names.asked(), 2);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn what_nobody_asks_any_more_is_forgotten() {
        let names = Scripted::default();
        let shared = Shared::new(names.clone());
        for i in 0..1000 {
            shared.resolve(&format!("{i}.test").into(), IpFamily::V4, Duration::ZERO).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(shared.questions.borrow().len() <= 64);
    }
}
