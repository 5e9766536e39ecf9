use std::cell::RefCell;
use std::rc::Rc;

use nuncio_api::pb::google::protobuf::ListValue;
use nuncio_core::metadata::Metadata;
use nuncio_core::net::Address;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::upstream::{HealthFlag, HealthFlags, HostSpec};

use super::super::{Observer, balancer};
use super::*;
use crate::upstream::lb_config::Selector;

fn text(value: &str) -> Value {
    Value { kind: Some(Kind::StringValue(value.into())) }
}

fn labels_of(labels: &[(&str, &str)]) -> Struct {
    Struct { fields: labels.iter().map(|(key, value)| ((*key).to_owned(), text(value))).collect() }
}

fn host(port: u16, labels: Struct) -> Arc<Host> {
    let mut metadata = Metadata::default();
    metadata.merge(labels::NAMESPACE, labels);
    let address = Address::Ip(([127, 0, 0, 1], port).into());
    Arc::new(Host::new(HostSpec { metadata: Arc::new(metadata), ..HostSpec::new(address) }))
}

/// The hosts of the oracle's lb_subset.
fn hosts() -> Vec<Arc<Host>> {
    let all: [&[(&str, &str)]; 4] =
        [&[("stage", "prod"), ("v", "1")], &[("stage", "prod"), ("v", "2")], &[("stage", "dev"), ("v", "1")], &[]];
    (1..).zip(all).map(|(port, labels)| host(port, labels_of(labels))).collect()
}

fn picture(hosts: Vec<Arc<Host>>) -> Arc<PrioritySet> {
    Arc::new(PrioritySet { priorities: vec![Arc::new(HostSet::new(hosts, |_| 0, 140))], ..PrioritySet::default() })
}

fn selector(keys: &[&str]) -> Selector {
    Selector { keys: keys.iter().map(|key| (*key).to_owned()).collect(), fallback: None, single_host: false }
}

fn config(fallback: Fallback, selectors: Vec<Selector>) -> SubsetConfig {
    SubsetConfig {
        fallback,
        default_subset: labels_of(&[("stage", "dev")]),
        selectors,
        locality_weight_aware: false,
        scale_locality_weight: false,
        panic_mode_any: false,
        list_as_any: false,
        fallback_list: false,
    }
}

/// What was observed.
#[derive(Default)]
struct Seen {
    selected: u32,
    fallback: u32,
    panic: u32,
    counts: SubsetCounts,
}

struct Observing(Rc<RefCell<Seen>>);

impl Observer for Observing {
    fn subset_selected(&self) {
        self.0.borrow_mut().selected += 1;
    }

    fn subset_fallback(&self, panic: bool) {
        let mut seen = self.0.borrow_mut();
        if panic { seen.panic += 1 } else { seen.fallback += 1 }
    }

    fn subsets(&self, counts: SubsetCounts) {
        self.0.borrow_mut().counts = counts;
    }
}

struct House {
    config: LbConfig,
    shared: Arc<Shared>,
    lb: Box<dyn LoadBalancer>,
    seen: Rc<RefCell<Seen>>,
}

impl House {
    fn new(subsets: SubsetConfig, hosts: Vec<Arc<Host>>) -> Self {
        let config = LbConfig { subsets: Some(Arc::new(subsets)), ..LbConfig::default() };
        let shared = Shared::new(&config).unwrap();
        let picture = picture(hosts);
        shared.update(&config, &NoRuntime, &picture);
        let seen = Rc::<RefCell<Seen>>::default();
        let around =
            Surroundings { rng: nuncio_core::random::Rng::with_seed(1), observer: Rc::new(Observing(seen.clone())) };
        let lb = balancer(&config, &picture, Some(&shared), &around);
        Self { config, shared, lb, seen }
    }

    /// Which hosts get something of twelve requests for these labels.
    fn reached(&mut self, wanted: Option<&[(&str, &str)]>) -> Vec<u16> {
        self.reached_by(wanted.map(labels_of))
    }

    fn reached_by(&mut self, wanted: Option<Struct>) -> Vec<u16> {
        let context = LbContext { metadata_match: wanted.as_ref(), ..LbContext::default() };
        let one = |lb: &mut Box<dyn LoadBalancer>| match lb.choose_host(&context) {
            Choice::Host(host) => host.address().port(),
            _ => None,
        };
        let mut ports: Vec<u16> = (0..12).filter_map(|_| one(&mut self.lb)).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

const NOBODY: [u16; 0] = [];

/// As Envoy's documentation of `metadata_fallback_policy` has it.
#[test]
fn what_is_asked_for_may_bring_a_list_of_what_to_ask_for_instead() {
    let with_list = |changes: Vec<Struct>| {
        let values = changes.into_iter().map(|one| Value { kind: Some(Kind::StructValue(one)) }).collect();
        let mut wanted = labels_of(&[("stage", "prod"), ("v", "9")]);
        wanted.fields.insert(FALLBACK_LIST.into(), Value { kind: Some(Kind::ListValue(ListValue { values })) });
        Some(wanted)
    };
    let config = || config(Fallback::None, vec![selector(&["stage", "v"])]);
    let mut house = House::new(SubsetConfig { fallback_list: true, ..config() }, hosts());
    let changes = vec![labels_of(&[("v", "8")]), labels_of(&[("v", "2")]), labels_of(&[("v", "1")])];
    assert_eq!(house.reached_by(with_list(changes.clone())), [2]);
    assert_eq!(house.reached_by(with_list(vec![labels_of(&[("v", "1"), ("stage", "dev")])])), [3]);
    assert_eq!(house.reached_by(with_list(vec![labels_of(&[("v", "8")])])), NOBODY);
    assert_eq!(house.reached_by(with_list(Vec::new())), NOBODY);
    assert_eq!(house.reached(Some(&[("stage", "prod"), ("v", "1")])), [1]);
    // Without the policy the list is a label like any other.
    assert_eq!(House::new(config(), hosts()).reached_by(with_list(changes)), NOBODY);
}

// What Envoy 1.40 did (lb_subset), if nothing else is said.

#[test]
fn requests_go_to_exactly_what_they_ask_for() {
    let selectors = || vec![selector(&["stage"]), selector(&["stage", "v"])];
    let mut none = House::new(config(Fallback::None, selectors()), hosts());
    assert_eq!(none.seen.borrow().counts, SubsetCounts { active: 5, created: 5, removed: 0 });
    for (wanted, reached) in [
        (&[("stage", "prod")][..], &[1, 2][..]),
        (&[("stage", "prod"), ("v", "1")], &[1]),
        (&[("v", "2"), ("stage", "prod")], &[2]),
        (&[("stage", "dev")], &[3]),
        (&[("stage", "none")], &[]),
        (&[("color", "red")], &[]),
        (&[("v", "2")], &[]),
    ] {
        assert_eq!(none.reached(Some(wanted)), reached, "{wanted:?}");
    }
    assert_eq!(none.reached(None), NOBODY);
    assert_eq!((none.seen.borrow().selected, none.seen.borrow().fallback), (48, 0));
    let mut any = House::new(config(Fallback::Any, selectors()), hosts());
    assert_eq!(any.reached(Some(&[("v", "2")])), [1, 2, 3, 4]);
    assert_eq!(any.reached(None), [1, 2, 3, 4]);
    assert_eq!(any.seen.borrow().fallback, 24);
    let mut default = House::new(config(Fallback::Default, selectors()), hosts());
    assert_eq!(default.reached(Some(&[("color", "red")])), [3]);
}

#[test]
fn a_selector_may_have_a_fallback_of_its_own() {
    let strict = Selector { fallback: Some(Fallback::None), ..selector(&["stage"]) };
    let fewer = Selector { fallback: Some(Fallback::Keys(vec!["stage".into()])), ..selector(&["stage", "v"]) };
    let mut lb = House::new(config(Fallback::Any, vec![strict, selector(&["v"]), fewer]), hosts());
    assert_eq!(lb.reached(Some(&[("stage", "none")])), NOBODY);
    assert_eq!(lb.reached(Some(&[("v", "9")])), [1, 2, 3, 4]);
    assert_eq!(lb.reached(Some(&[("stage", "dev"), ("v", "9")])), [3]);
}

#[test]
fn an_empty_fallback_may_be_followed_by_any_host() {
    let subsets = |panic_mode_any| SubsetConfig {
        default_subset: labels_of(&[("stage", "none")]),
        panic_mode_any,
        ..config(Fallback::Default, vec![selector(&["stage"])])
    };
    assert_eq!(House::new(subsets(false), hosts()).reached(None), NOBODY);
    let mut any = House::new(subsets(true), hosts());
    assert_eq!(any.reached(None), [1, 2, 3, 4]);
    assert_eq!(any.seen.borrow().panic, 12);
}

#[test]
fn subsets_follow_the_hosts() {
    let mut lb = House::new(config(Fallback::None, vec![selector(&["stage"])]), hosts());
    assert_eq!(lb.reached(Some(&[("stage", "prod")])), [1, 2]);
    let mut now = hosts();
    now[1].set_flags(HealthFlags::default().with(HealthFlag::FailedOutlierCheck));
    now[2] = host(7, labels_of(&[("stage", "test")]));
    now.push(host(8, labels_of(&[("stage", "prod")])));
    now.push(host(9, labels_of(&[("stage", "prod")])));
    let picture = picture(now);
    lb.shared.update(&lb.config, &NoRuntime, &picture);
    lb.lb.hosts_changed(&picture);
    assert_eq!(lb.seen.borrow().counts, SubsetCounts { active: 2, created: 1, removed: 1 });
    assert_eq!(lb.reached(Some(&[("stage", "prod")])), [1, 8, 9]);
    assert_eq!(lb.reached(Some(&[("stage", "dev")])), NOBODY);
    assert_eq!(lb.reached(Some(&[("stage", "test")])), [7]);
}

// As the field's documentation has it.
#[test]
fn a_list_can_put_a_host_into_several_subsets_and_a_subset_can_be_one_host() {
    let list = Value { kind: Some(Kind::ListValue(ListValue { values: vec![text("1"), text("2")] })) };
    let both = host(1, Struct { fields: [("v".to_owned(), list)].into() });
    let all = vec![both, host(2, labels_of(&[("v", "2")])), host(3, labels_of(&[("v", "2")]))];
    let subsets = |single_host| SubsetConfig {
        list_as_any: true,
        ..config(Fallback::None, vec![Selector { single_host, ..selector(&["v"]) }])
    };
    let mut lb = House::new(subsets(false), all.clone());
    assert_eq!(lb.reached(Some(&[("v", "1")])), [1]);
    assert_eq!(lb.reached(Some(&[("v", "2")])), [1, 2, 3]);
    assert_eq!(House::new(subsets(true), all).reached(Some(&[("v", "2")])), [1]);
}
