//! What an operator may demand beyond Envoy, by runtime keys (each a line in docs/differences.md). Off unless set.

use nuncio_core::runtime::Runtime;

/// Requests without a route are checked too, so that 404 tells nobody which paths exist.
pub(super) fn checks_without_route(runtime: &dyn Runtime) -> bool {
    is_set(runtime, "nuncio.ext_authz.check_without_route")
}

/// A refusal with this status of gRPC's counts as an error, to which `failure_mode_allow` and `status_on_error` apply:
/// `nuncio.ext_authz.error_status.14`.
pub(super) fn is_error(code: i32, runtime: &dyn Runtime) -> bool {
    code != 0 && is_set(runtime, &format!("nuncio.ext_authz.error_status.{code}"))
}

/// A route that differs from the one that was asked about is refused, unless the answer itself had it matched again.
pub(super) fn holds_the_route(runtime: &dyn Runtime) -> bool {
    is_set(runtime, "nuncio.ext_authz.refuse_route_change")
}

fn is_set(runtime: &dyn Runtime, key: &str) -> bool {
    runtime.boolean(key) == Some(true)
}
