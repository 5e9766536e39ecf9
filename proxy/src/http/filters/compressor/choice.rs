//! Which of a stream's compressors does it: one decision from what the client accepts and what all
//! compressors of the chain offer for this response.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use nuncio_core::http::{ResponseHead, StreamControl};
use nuncio_core::stream_info::FilterStateObject;

use super::{Settings, media_type};

/// Where the compressors of a stream find each other; Envoy's name.
const KEY: &str = "envoy.filters.http.compressor";

/// The compressors of a stream in the order of the configuration.
struct Offered(RefCell<Vec<Arc<Settings>>>);

impl FilterStateObject for Offered {
    fn text(&self) -> Option<String> {
        None
    }
}

pub(super) fn register(stream: &StreamControl, settings: &Arc<Settings>) {
    let mut info = stream.info_mut();
    if let Some(object) = info.filter_state.get(KEY) {
        let object: &dyn Any = &**object;
        if let Some(offered) = object.downcast_ref::<Offered>() {
            offered.0.borrow_mut().push(settings.clone());
        }
        return;
    }
    // Of this thread only, like all that a stream has.
    #[allow(clippy::arc_with_non_send_sync)]
    info.filter_state.set(KEY, Arc::new(Offered(RefCell::new(vec![settings.clone()]))));
}

/// `accept-encoding`, as the client sent it.
#[derive(Debug, PartialEq)]
pub(super) struct Accepted(Vec<(Vec<u8>, f32)>);

impl Accepted {
    /// A coding whose q-value is no number was not named.
    pub(super) fn new(header: &[u8]) -> Self {
        let tokens = header.split(|b| *b == b',').filter(|token| !token.is_empty());
        Self(tokens.filter_map(coding).collect())
    }
}

fn coding(token: &[u8]) -> Option<(Vec<u8>, f32)> {
    let mut parts = token.splitn(2, |b| *b == b';');
    let name = parts.next().unwrap_or_default().trim_ascii().to_vec();
    let Some((key, value)) = parts.next().and_then(|parameter| {
        let at = parameter.iter().position(|b| *b == b'=')?;
        Some((parameter[..at].trim_ascii(), parameter[at + 1..].trim_ascii()))
    }) else {
        return Some((name, 1.0));
    };
    if !key.eq_ignore_ascii_case(b"q") {
        return Some((name, 1.0));
    }
    Some((name, std::str::from_utf8(value).ok()?.parse().ok()?))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Named(&'static str),
    /// By `*`: whichever compressor is first.
    Any(&'static str),
    Identity,
    NotValid,
}

/// What a compressor offers for one response.
struct Offer {
    encoding: &'static str,
    first: bool,
}

pub(super) fn decide(stream: &StreamControl, accepted: &Accepted, head: &ResponseHead) -> Decision {
    let info = stream.info();
    let Some(object) = info.filter_state.get(KEY) else { return Decision::NotValid };
    let object: &dyn Any = &**object;
    let Some(offered) = object.downcast_ref::<Offered>() else { return Decision::NotValid };
    let media_type = head.headers.get("content-type").map(media_type);
    let mut offers = Vec::<Offer>::new();
    for settings in offered.0.borrow().iter() {
        let encoding = settings.library.encoding;
        // One that does not compress this type must not keep others from it.
        if media_type.is_some_and(|t| !t.is_empty() && !settings.response.names(t)) {
            continue;
        }
        if offers.iter().all(|offer| offer.encoding != encoding) {
            offers.push(Offer { encoding, first: settings.choose_first });
        }
    }
    choose(accepted, offers)
}

fn choose(accepted: &Accepted, mut offers: Vec<Offer>) -> Decision {
    for (name, _) in accepted.0.iter().filter(|(_, q)| *q == 0.0) {
        offers.retain(|offer| offer.encoding.as_bytes() != name);
    }
    if accepted.0.is_empty() || offers.is_empty() {
        return Decision::NotValid;
    }
    let mut choice: (&[u8], f32) = (b"identity", 0.0);
    for (name, q) in &accepted.0 {
        let offer = offers.iter().find(|offer| offer.encoding.as_bytes() == name);
        let usable = offer.is_some() || name == b"identity" || name == b"*";
        if (*q > choice.1 && usable) || (*q == choice.1 && *q > 0.0 && offer.is_some_and(|offer| offer.first)) {
            choice = (name, *q);
        }
    }
    match choice {
        (_, 0.0) => Decision::NotValid,
        (b"identity", _) => Decision::Identity,
        // `choose_first` is not asked: as in Envoy the first of the configuration.
        (b"*", _) => Decision::Any(offers[0].encoding),
        (name, _) => match offers.iter().find(|offer| offer.encoding.as_bytes() == name) {
            Some(offer) => Decision::Named(offer.encoding),
            None => Decision::NotValid,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected: recorded from Envoy 1.40 (filter_compressor).
    #[test]
    fn the_highest_weight_that_is_offered_wins() {
        let decide = |header: &str, first: &'static str| {
            let offer = |encoding| Offer { encoding, first: encoding == first };
            choose(&Accepted::new(header.as_bytes()), vec![offer("gzip"), offer("br")])
        };
        for (header, decision) in [
            ("gzip", Decision::Named("gzip")),
            ("br, gzip", Decision::Named("br")),
            ("br;q=0.4, gzip;q=0.5", Decision::Named("gzip")),
            ("gzip;q=0.001", Decision::Named("gzip")),
            ("*", Decision::Any("gzip")),
            ("gzip;q=0, *", Decision::Any("br")),
            ("identity, gzip", Decision::Identity),
            ("identity;q=0.5, gzip;q=1", Decision::Named("gzip")),
            ("GZIP", Decision::NotValid),
            ("gzip;q=banana", Decision::NotValid),
            ("gzip; q=0.0", Decision::NotValid),
            ("*;q=0", Decision::NotValid),
            ("", Decision::NotValid),
        ] {
            assert_eq!(decide(header, ""), decision, "{header}");
        }
        assert_eq!(decide("gzip, br", "br"), Decision::Named("br"));
        assert_eq!(decide("gzip, br;q=0.5", "br"), Decision::Named("gzip"));
    }
}
