//! What an authorization service said, in one form for gRPC and HTTP.

use nuncio_api::pb::envoy::config::core::v3::{
    HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction,
};
use nuncio_api::pb::envoy::service::auth::v3::{
    CheckResponse, DeniedHttpResponse, OkHttpResponse, check_response::HttpResponse,
};
use nuncio_api::pb::google::protobuf::Struct;

/// An answer, and what it leaves in the stream's dynamic metadata.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    pub(super) metadata: Struct,
}

#[derive(Debug)]
pub(super) enum Verdict {
    Allowed(Box<Changes>),
    Denied(Refusal),
    /// No answer, or one that says it is none.
    Error(Refusal),
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Error(Refusal::default())
    }
}

/// A field as the service gave it.
pub(super) type Field = (String, Vec<u8>);

/// What becomes of an allowed request and its response.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Instead of what is there.
    pub(super) set: Vec<Field>,
    /// Beside what is there.
    pub(super) add: Vec<Field>,
    /// To the value of a header that is there, with a comma.
    pub(super) append: Vec<Field>,
    pub(super) remove: Vec<String>,
    pub(super) query_set: Vec<(String, String)>,
    pub(super) query_remove: Vec<String>,
    pub(super) response: Vec<(HeaderAppendAction, Field)>,
}

impl Changes {
    /// Whether the request is another one afterwards.
    pub(super) fn touch_request(&self) -> bool {
        !(self.set.is_empty()
            && self.add.is_empty()
            && self.append.is_empty()
            && self.remove.is_empty()
            && self.query_set.is_empty()
            && self.query_remove.is_empty())
    }
}

/// What the client gets instead of a response. Without a status it has the one of its kind.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    pub(super) status: Option<u16>,
    pub(super) headers: Vec<Field>,
    pub(super) body: Vec<u8>,
    /// Which status of gRPC's the service gave, for those that are told to take it as an error.
    pub(super) code: i32,
}

impl Answer {
    pub(super) fn error() -> Self {
        Self::default()
    }

    /// Of the gRPC form. A message without a status allows, as in Envoy.
    pub(super) fn from_grpc(mut message: CheckResponse) -> Self {
        let code = message.status.as_ref().map_or(0, |status| status.code);
        let mut metadata = message.dynamic_metadata.take().unwrap_or_default();
        let verdict = match message.http_response {
            Some(HttpResponse::OkResponse(mut ok)) if code == 0 => {
                #[allow(deprecated)]
                if let Some(old) = ok.dynamic_metadata.take() {
                    metadata = old;
                }
                Verdict::Allowed(Box::new(Changes::from_grpc(ok)))
            }
            _ if code == 0 => Verdict::Allowed(Box::default()),
            Some(HttpResponse::ErrorResponse(error)) => Verdict::Error(Refusal::from_grpc(error, code)),
            Some(HttpResponse::DeniedResponse(denied)) => Verdict::Denied(Refusal::from_grpc(denied, code)),
            _ => Verdict::Denied(Refusal { code, ..Refusal::default() }),
        };
        Self { verdict, metadata }
    }
}

impl Changes {
    /// Of `headers` Envoy looks at `append` only: true extends what is there, everything else replaces it.
    fn from_grpc(ok: OkHttpResponse) -> Self {
        let mut changes =
            Self { remove: ok.headers_to_remove, query_remove: ok.query_parameters_to_remove, ..Self::default() };
        for option in ok.headers {
            let append = old_append(&option) == Some(true);
            let Some(field) = field(option) else { continue };
            if append { changes.append.push(field) } else { changes.set.push(field) }
        }
        for option in ok.response_headers_to_add {
            let action = match old_append(&option) {
                Some(true) => HeaderAppendAction::AppendIfExistsOrAdd,
                Some(false) => HeaderAppendAction::OverwriteIfExistsOrAdd,
                None => option.append_action(),
            };
            if let Some(field) = field(option) {
                changes.response.push((action, field));
            }
        }
        changes.query_set = ok.query_parameters_to_set.into_iter().map(|p| (p.key, p.value)).collect();
        changes
    }
}

impl Refusal {
    fn from_grpc(denied: DeniedHttpResponse, code: i32) -> Self {
        Self {
            status: denied.status.map(|status| status.code as u16).filter(|status| *status != 0),
            headers: denied.headers.into_iter().filter_map(field).collect(),
            body: denied.body.into_bytes(),
            code,
        }
    }
}

#[allow(deprecated)]
fn old_append(option: &HeaderValueOption) -> Option<bool> {
    option.append.as_ref().map(|append| append.value)
}

fn field(option: HeaderValueOption) -> Option<Field> {
    let HeaderValue { key, value, raw_value } = option.header?;
    Some((key.to_ascii_lowercase(), if value.is_empty() { raw_value } else { value.into_bytes() }))
}
