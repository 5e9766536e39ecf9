//! The check as a gRPC call, `envoy.service.auth.v3.Authorization/Check`.

use nuncio_api::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use nuncio_core::access_log::LogContext;
use nuncio_core::extension::WorkerContext;
use nuncio_core::upstream::GrpcService;

use super::answer::Answer;

/// The method of all forms of the gRPC check.
pub(crate) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// Asks; whatever ends without an answer is an error.
pub(super) fn check(
    service: &GrpcService,
    request: &CheckRequest,
    told: &LogContext<'_>,
    worker: &WorkerContext,
) -> impl Future<Output = Answer> + use<> {
    let call = service.call::<CheckResponse>(CHECK, request, told, worker);
    let cluster = service.cluster().to_owned();
    async move {
        match call.await {
            Ok(message) => Answer::from_grpc(message),
            Err(failure) => {
                tracing::debug!(target: "ext_authz", cluster, "the check failed: {failure}");
                Answer::error()
            }
        }
    }
}
