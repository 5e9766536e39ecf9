//! `JwtRequirement`: which tokens a request needs, as a tree of providers.

use std::collections::HashMap;

use nuncio_api::pb::envoy::extensions::filters::http::jwt_authn::v3::{self as pb, jwt_requirement::RequiresType};
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;

use super::extract::{Found, Location};
use super::jwks::Jwks;
use super::provider::{Provider, Source, audiences};
use super::status::Status;
use super::token::Jwt;

#[derive(Debug)]
pub(super) enum Requirement {
    /// One of a provider (its index), with the audiences asked for here.
    Provider(usize, Option<Vec<String>>),
    /// One that any provider knows, or none.
    AllowMissing,
    AllowMissingOrFailed,
    /// The first that holds; what holds beside if none does.
    Any(Vec<Requirement>, Otherwise),
    All(Vec<Requirement>),
    /// Nothing is asked.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Otherwise {
    Fails,
    MayBeMissing,
    MayFail,
}

impl Requirement {
    pub(super) fn new(proto: &pb::JwtRequirement, names: &HashMap<String, usize>) -> Result<Self, ConfigError> {
        let provider = |name: &String| {
            let unknown =
                || ConfigError::new("provider_name", format!("Required provider ['{name}'] is not configured."));
            names.get(name).copied().ok_or_else(unknown)
        };
        Ok(match &proto.requires_type {
            None => Self::None,
            Some(RequiresType::ProviderName(name)) => Self::Provider(provider(name)?, None),
            Some(RequiresType::ProviderAndAudiences(with)) => {
                Self::Provider(provider(&with.provider_name)?, Some(audiences(&with.audiences)))
            }
            Some(RequiresType::AllowMissing(_)) => Self::AllowMissing,
            Some(RequiresType::AllowMissingOrFailed(_)) => Self::AllowMissingOrFailed,
            Some(RequiresType::RequiresAll(list)) => {
                let list = list.requirements.iter().map(|one| Self::new(one, names));
                Self::All(list.collect::<Result<_, _>>().map_err(|e| e.within("requires_all"))?)
            }
            Some(RequiresType::RequiresAny(list)) => {
                let list = list.requirements.iter().map(|one| Self::new(one, names));
                Self::any(list.collect::<Result<_, _>>().map_err(|e| e.within("requires_any"))?)
            }
            Some(RequiresType::ExtractOnlyWithoutValidation(_)) => {
                return Err(ConfigError::new("extract_only_without_validation", "is not implemented"));
            }
        })
    }

    /// In a list of alternatives the two allowances say what holds if nothing else does.
    fn any(list: Vec<Self>) -> Self {
        let otherwise = list.iter().fold(Otherwise::Fails, |so_far, one| match (so_far, one) {
            (Otherwise::MayFail, _) | (_, Self::AllowMissingOrFailed) => Otherwise::MayFail,
            (_, Self::AllowMissing) => Otherwise::MayBeMissing,
            (so_far, _) => so_far,
        });
        let is_allowance = |one: &Self| matches!(one, Self::AllowMissing | Self::AllowMissingOrFailed);
        if list.iter().all(is_allowance) {
            return if otherwise == Otherwise::MayFail { Self::AllowMissingOrFailed } else { Self::AllowMissing };
        }
        Self::Any(list.into_iter().filter(|one| !is_allowance(one)).collect(), otherwise)
    }

    /// Calls `each` with every provider that may be asked.
    pub(super) fn providers(&self, count: usize, each: &mut impl FnMut(usize)) {
        match self {
            Self::Provider(index, _) => each(*index),
            Self::AllowMissing | Self::AllowMissingOrFailed => (0..count).for_each(each),
            Self::Any(list, _) | Self::All(list) => list.iter().for_each(|one| one.providers(count, each)),
            Self::None => {}
        }
    }
}

/// The keys of a provider that a verification asks for.
pub(super) enum Keys<'a> {
    Local(&'a Jwks),
    Remote(std::rc::Rc<Jwks>),
    /// They must be fetched first.
    Wanted,
    /// That was tried for this request.
    Failed,
}

/// A token that was found good, with the provider that vouches for it.
pub(super) struct Good {
    pub(super) provider: usize,
    pub(super) location: Location,
    pub(super) jwt: Jwt,
}

/// One evaluation of a request's requirement. It changes nothing: what came out is applied at the end.
pub(super) struct Evaluation<'a, K> {
    pub(super) providers: &'a [Provider],
    pub(super) head: &'a RequestHead,
    pub(super) now: u64,
    /// By provider.
    pub(super) keys: K,
    pub(super) good: Vec<Good>,
    /// What providers said of tokens that they did not like.
    pub(super) bad: Vec<(usize, Status)>,
    /// Tokens of known providers.
    pub(super) seen: u64,
}

/// The provider whose keys must be fetched before the answer is known.
pub(super) struct Wants(pub(super) usize);

impl<'a, K: Fn(usize) -> Keys<'a>> Evaluation<'a, K> {
    pub(super) fn run(&mut self, requirement: &Requirement) -> Result<Status, Wants> {
        match requirement {
            Requirement::None => Ok(Status::Ok),
            Requirement::Provider(index, audiences) => {
                let providers = self.providers;
                let found: Vec<_> = providers[*index].locations.iter().filter_map(|l| l.find(self.head)).collect();
                self.tokens(&found, Some(*index), audiences.as_deref(), false)
            }
            Requirement::AllowMissing => match self.of_any_provider(false)? {
                Status::Missed => Ok(Status::Ok),
                status => Ok(status),
            },
            Requirement::AllowMissingOrFailed => self.of_any_provider(true).map(|_| Status::Ok),
            Requirement::All(list) => {
                for one in list {
                    let status = self.run(one)?;
                    if status != Status::Ok {
                        return Ok(status);
                    }
                }
                Ok(Status::Ok)
            }
            Requirement::Any(list, otherwise) => self.any(list, *otherwise),
        }
    }

    fn any(&mut self, list: &[Requirement], otherwise: Otherwise) -> Result<Status, Wants> {
        let mut worst = Status::Missed;
        for one in list {
            let status = self.run(one)?;
            match status {
                Status::Ok => return Ok(status),
                Status::Missed => {}
                // That another issuer's token is not ours tells less than what is wrong with ours.
                Status::UnknownIssuer if worst != Status::Missed => {}
                _ => worst = status,
            }
        }
        Ok(match (otherwise, worst) {
            (Otherwise::MayFail, _) | (Otherwise::MayBeMissing, Status::Missed) => Status::Ok,
            _ => worst,
        })
    }

    /// The tokens at any provider's places.
    fn of_any_provider(&mut self, all: bool) -> Result<Status, Wants> {
        let providers = self.providers;
        let mut found = Vec::<Found<'a>>::new();
        for location in providers.iter().flat_map(|provider| &provider.locations) {
            if found.iter().all(|known| known.location != location) {
                found.extend(location.find(self.head));
            }
        }
        self.tokens(&found, None, None, all)
    }

    /// The last place first, as Envoy does it; `all`: also after a good one.
    fn tokens(
        &mut self,
        found: &[Found<'a>],
        provider: Option<usize>,
        audiences: Option<&[String]>,
        all: bool,
    ) -> Result<Status, Wants> {
        let mut status = Status::Missed;
        for found in found.iter().rev() {
            status = self.token(found, provider, audiences)?;
            if status == Status::Ok && !all {
                break;
            }
        }
        Ok(status)
    }

    fn token(
        &mut self,
        found: &Found<'a>,
        provider: Option<usize>,
        audiences: Option<&[String]>,
    ) -> Result<Status, Wants> {
        self.seen += 1;
        let jwt = match Jwt::parse(&found.text) {
            Ok(jwt) => jwt,
            Err(status) => {
                self.bad.extend(provider.map(|provider| (provider, status)));
                return Ok(status);
            }
        };
        let Some(index) = provider.or_else(|| self.by_issuer(&jwt, found.location)) else {
            return Ok(Status::UnknownIssuer);
        };
        let mut status = self.providers[index].check(&jwt, self.now, audiences);
        if status == Status::Ok {
            status = match (self.keys)(index) {
                Keys::Local(keys) => keys.verify(&jwt),
                Keys::Remote(keys) => keys.verify(&jwt),
                Keys::Failed => Status::JwksFetchFail,
                Keys::Wanted => return Err(Wants(index)),
            };
        }
        match status {
            Status::Ok => self.good.push(Good { provider: index, location: found.location.clone(), jwt }),
            status => self.bad.push((index, status)),
        }
        Ok(status)
    }

    /// The provider of that issuer, else one for any, if it looks at this place.
    fn by_issuer(&self, jwt: &Jwt, location: &Location) -> Option<usize> {
        let looks = |provider: &Provider| provider.locations.contains(location);
        let of = |issuer: &str| self.providers.iter().position(|p| p.issuer == issuer && looks(p));
        of(&jwt.issuer).or_else(|| of(""))
    }
}

impl Provider {
    pub(super) fn local_keys(&self) -> Option<Keys<'_>> {
        match &self.source {
            Source::Local(keys) => Some(Keys::Local(keys)),
            Source::Remote(_) => None,
        }
    }
}
