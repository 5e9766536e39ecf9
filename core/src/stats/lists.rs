//! The lists of Envoy's own objects, with exactly the names Envoy 1.40 shows.
//!
//! A cluster's hundred names are split by what is first counted together, so that a cluster that only passes good
//! requests does not pay for retries, and an idle one for nothing. A list may move to the room that counts it; until
//! then one long file of names is easier to search than many short ones.

use super::codes::Codes;
use super::list::{List, Scope};

/// `cluster.<name>.`
pub mod cluster {
    use super::{Codes, List, Scope};

    pub static SCOPE: Scope = Scope {
        root: "cluster.",
        lists: &[
            Traffic::descriptors,
            Connections::descriptors,
            Failures::descriptors,
            Retries::descriptors,
            Rare::descriptors,
            LoadBalancer::descriptors,
            CircuitBreakers::descriptors,
            Membership::descriptors,
            Updates::descriptors,
            Codes::of_clusters,
        ],
    };

    crate::stats! {
        /// What every connection and request counts.
        pub Traffic {
            counter UPSTREAM_CX_TOTAL;
            gauge UPSTREAM_CX_ACTIVE;
            counter UPSTREAM_CX_HTTP1_TOTAL;
            counter UPSTREAM_CX_HTTP2_TOTAL;
            counter UPSTREAM_CX_RX_BYTES_TOTAL;
            gauge UPSTREAM_CX_RX_BYTES_BUFFERED;
            counter UPSTREAM_CX_TX_BYTES_TOTAL;
            gauge UPSTREAM_CX_TX_BYTES_BUFFERED;
            counter UPSTREAM_RQ_TOTAL;
            gauge UPSTREAM_RQ_ACTIVE;
            counter UPSTREAM_RQ_PENDING_TOTAL;
            gauge UPSTREAM_RQ_PENDING_ACTIVE;
            counter UPSTREAM_CX_DESTROY;
            counter UPSTREAM_CX_DESTROY_LOCAL;
            counter UPSTREAM_CX_DESTROY_REMOTE;
        }
    }
    crate::stats! {
        /// Time and use of connections.
        pub Connections {
            /// Until the connection is established, handshake included.
            histogram(milliseconds) UPSTREAM_CX_CONNECT_MS;
            histogram(milliseconds) UPSTREAM_CX_LENGTH_MS;
            histogram(unspecified) UPSTREAM_RQ_PER_CX;
        }
    }
    crate::stats! {
        /// Time of requests: listed once there was one.
        pub ResponseTime at ["", "internal.", "external.", "canary."] {
            histogram(milliseconds) UPSTREAM_RQ_TIME;
        }
    }
    crate::stats! {
        /// What went wrong with connections and requests, or was refused.
        pub Failures {
            counter UPSTREAM_CX_CONNECT_FAIL;
            counter UPSTREAM_CX_CONNECT_TIMEOUT;
            counter UPSTREAM_CX_CONNECT_ATTEMPTS_EXCEEDED;
            counter UPSTREAM_CX_OVERFLOW;
            counter UPSTREAM_CX_POOL_OVERFLOW;
            counter UPSTREAM_CX_NONE_HEALTHY;
            counter UPSTREAM_CX_PROTOCOL_ERROR;
            counter UPSTREAM_CX_DESTROY_WITH_ACTIVE_RQ;
            counter UPSTREAM_CX_DESTROY_LOCAL_WITH_ACTIVE_RQ;
            counter UPSTREAM_CX_DESTROY_REMOTE_WITH_ACTIVE_RQ;
            counter UPSTREAM_CX_CLOSE_NOTIFY;
            counter UPSTREAM_CX_IDLE_TIMEOUT;
            counter UPSTREAM_CX_MAX_DURATION_REACHED;
            counter UPSTREAM_CX_MAX_REQUESTS;
            counter UPSTREAM_RQ_PENDING_OVERFLOW;
            counter UPSTREAM_RQ_PENDING_FAILURE_EJECT;
            counter UPSTREAM_RQ_ACTIVE_OVERFLOW;
            counter UPSTREAM_RQ_CANCELLED;
            counter UPSTREAM_RQ_RX_RESET;
            counter UPSTREAM_RQ_RX_RESET_NO_ERROR;
            counter UPSTREAM_RQ_TX_RESET;
            counter BIND_ERRORS;
        }
    }
    crate::stats! {
        /// Timeouts and retries.
        pub Retries {
            counter UPSTREAM_RQ_TIMEOUT;
            counter UPSTREAM_RQ_MAX_DURATION_REACHED;
            counter UPSTREAM_RQ_PER_TRY_TIMEOUT;
            counter UPSTREAM_RQ_PER_TRY_IDLE_TIMEOUT;
            counter UPSTREAM_RQ_RETRY;
            counter UPSTREAM_RQ_RETRY_BACKOFF_EXPONENTIAL;
            counter UPSTREAM_RQ_RETRY_BACKOFF_RATELIMITED;
            counter UPSTREAM_RQ_RETRY_LIMIT_EXCEEDED;
            counter UPSTREAM_RQ_RETRY_OVERFLOW;
            counter UPSTREAM_RQ_RETRY_SUCCESS;
            counter RETRY_OR_SHADOW_ABANDONED;
        }
    }
    crate::stats! {
        /// What most clusters never count.
        pub Rare {
            counter UPSTREAM_CX_HTTP3_TOTAL;
            counter UPSTREAM_CX_CONNECT_WITH_0_RTT;
            counter UPSTREAM_CX_PRECONNECT_SKIPPED;
            counter UPSTREAM_HTTP3_BROKEN;
            counter UPSTREAM_RQ_0RTT;
            counter UPSTREAM_RQ_MAINTENANCE_MODE;
            counter UPSTREAM_INTERNAL_REDIRECT_FAILED_TOTAL;
            counter UPSTREAM_INTERNAL_REDIRECT_SUCCEEDED_TOTAL;
            counter UPSTREAM_FLOW_CONTROL_BACKED_UP_TOTAL;
            counter UPSTREAM_FLOW_CONTROL_DRAINED_TOTAL;
            counter UPSTREAM_FLOW_CONTROL_PAUSED_READING_TOTAL;
            counter UPSTREAM_FLOW_CONTROL_RESUMED_READING_TOTAL;
            gauge UPSTREAM_QUEUE_OVERLOADED;
            counter ORIGINAL_DST_HOST_INVALID;
        }
    }
    crate::stats! {
        /// How hosts were picked.
        pub LoadBalancer {
            counter LB_HEALTHY_PANIC;
            counter LB_LOCAL_CLUSTER_NOT_OK;
            counter LB_RECALCULATE_ZONE_STRUCTURES;
            gauge LB_SUBSETS_ACTIVE;
            counter LB_SUBSETS_CREATED;
            counter LB_SUBSETS_FALLBACK;
            counter LB_SUBSETS_FALLBACK_PANIC;
            counter LB_SUBSETS_REMOVED;
            counter LB_SUBSETS_SELECTED;
            counter LB_ZONE_CLUSTER_TOO_SMALL;
            counter LB_ZONE_NO_CAPACITY_LEFT;
            counter LB_ZONE_ROUTING_ALL_DIRECTLY;
            counter LB_ZONE_ROUTING_CROSS_ZONE;
            counter LB_ZONE_ROUTING_SAMPLED;
        }
    }
    crate::stats! {
        /// How evenly a ring of hashes is shared. Main counts this and the next.
        pub RingHash at ["ring_hash_lb."] {
            gauge MAX_HASHES_PER_HOST;
            gauge MIN_HASHES_PER_HOST;
            gauge RING_SIZE = "size";
        }
    }
    crate::stats! {
        pub Maglev at ["maglev_lb."] {
            gauge MAX_ENTRIES_PER_HOST;
            gauge MIN_ENTRIES_PER_HOST;
        }
    }
    crate::stats! {
        /// 1 while a limit is reached; by priority.
        pub CircuitBreakers at ["circuit_breakers.default.", "circuit_breakers.high."] {
            gauge CX_OPEN;
            gauge CX_POOL_OPEN;
            gauge RQ_OPEN;
            gauge RQ_PENDING_OPEN;
            gauge RQ_RETRY_OPEN;
        }
    }
    crate::stats! {
        /// What is left below the limits, with `track_remaining`; by priority.
        pub CircuitBreakersRemaining at ["circuit_breakers.default.", "circuit_breakers.high."] {
            gauge REMAINING_CX;
            gauge REMAINING_CX_POOLS;
            gauge REMAINING_PENDING;
            gauge REMAINING_RETRIES;
            gauge REMAINING_RQ;
        }
    }
    crate::stats! {
        /// Who is in the cluster. Main counts this.
        pub Membership {
            counter MEMBERSHIP_CHANGE;
            gauge MEMBERSHIP_DEGRADED;
            gauge MEMBERSHIP_EXCLUDED;
            gauge MEMBERSHIP_HEALTHY;
            gauge MEMBERSHIP_TOTAL;
            gauge WARMING_STATE;
            /// One for each host: Envoy picks each host's transport socket, also where there is no choice.
            counter DEFAULT_TOTAL_MATCH_COUNT = "default.total_match_count";
        }
    }
    crate::stats! {
        /// Where members come from. Main counts this.
        pub Updates {
            counter UPDATE_ATTEMPT;
            counter UPDATE_EMPTY;
            counter UPDATE_FAILURE;
            counter UPDATE_NO_REBUILD;
            counter UPDATE_SUCCESS;
            counter ASSIGNMENT_STALE;
            counter ASSIGNMENT_TIMEOUT_RECEIVED;
            counter ASSIGNMENT_USE_CACHED;
            gauge MAX_HOST_WEIGHT;
            gauge VERSION;
        }
    }
    crate::stats! {
        /// Where members come from by subscription: listed once something is told of them.
        pub Subscription {
            counter UPDATE_REJECTED;
            counter INIT_FETCH_TIMEOUT;
            /// When the last good answer came, in milliseconds since 1970.
            gauge UPDATE_TIME;
        }
    }
    crate::stats! {
        /// Of clusters that are protected against their source (`nuncio.discovery` in their metadata); not Envoy's.
        pub Discovery at ["discovery."] {
            /// Empty answers that did not empty the cluster.
            counter KEPT_ON_EMPTY;
            /// 1 while hosts are kept against an empty answer.
            gauge KEEPING;
            /// Answers that went back to a version that another one had followed.
            counter REFUSED_OLDER;
        }
    }
}

/// `dns.cares.` of the resolvers, under the name of Envoy's: listed once there is one.
pub mod dns {
    use super::{List, Scope};

    /// Named "".
    pub static SCOPE: Scope = Scope { root: "dns.cares.", lists: &[Resolver::descriptors] };

    crate::stats! {
        /// Main counts this.
        pub Resolver {
            counter RESOLVE_TOTAL;
            gauge PENDING_RESOLUTIONS;
            /// The name, or records of it, do not exist.
            counter NOT_FOUND;
            counter TIMEOUT;
            /// All other failures.
            counter GET_ADDR_FAILURE;
        }
    }
}

/// `http2.` and `cluster.<name>.http2.`: listed once a codec was made.
pub mod http2 {
    use super::{List, Scope};

    /// Named "http2".
    pub static SCOPE: Scope = Scope { root: "", lists: &[|| &Codec::descriptors()[..1]] };

    crate::stats! {
        /// Under a scope named "http2", or in a cluster's scope under the prefix 1.
        pub Codec at ["", "http2."] {
            counter DROPPED_HEADERS_WITH_UNDERSCORES;
            counter GOAWAY_SENT;
            counter HEADER_OVERFLOW;
            counter HEADERS_CB_NO_STREAM;
            counter INBOUND_EMPTY_FRAMES_FLOOD;
            counter INBOUND_PRIORITY_FRAMES_FLOOD;
            counter INBOUND_WINDOW_UPDATE_FRAMES_FLOOD;
            counter KEEPALIVE_TIMEOUT;
            counter METADATA_EMPTY_FRAMES;
            counter OUTBOUND_CONTROL_FLOOD;
            counter OUTBOUND_FLOOD;
            counter REQUESTS_REJECTED_WITH_UNDERSCORES_IN_HEADERS;
            counter RX_MESSAGING_ERROR;
            counter RX_RESET;
            counter STREAM_REFUSED_ERRORS;
            counter TRAILERS;
            counter TX_FLUSH_TIMEOUT;
            counter TX_RESET;
            gauge DEFERRED_STREAM_CLOSE;
            gauge OUTBOUND_CONTROL_FRAMES_ACTIVE;
            gauge OUTBOUND_FRAMES_ACTIVE;
            gauge PENDING_SEND_BYTES;
            gauge STREAMS_ACTIVE;
        }
    }
}

/// `http1.` and `cluster.<name>.http1.`: listed once a codec was made.
pub mod http1 {
    use super::{List, Scope};

    /// Named "http1".
    pub static SCOPE: Scope = Scope { root: "", lists: &[|| &Codec::descriptors()[..1]] };

    crate::stats! {
        /// Under a scope named "http1", or in a cluster's scope under the prefix 1.
        pub Codec at ["", "http1."] {
            counter DROPPED_HEADERS_WITH_UNDERSCORES;
            counter METADATA_NOT_SUPPORTED_ERROR;
            counter REQUESTS_REJECTED_WITH_UNDERSCORES_IN_HEADERS;
            counter RESPONSE_FLOOD;
        }
    }
}

/// `http.<stat_prefix>.` of a connection manager and its router.
pub mod http {
    use super::{List, Scope};

    pub static SCOPE: Scope = Scope {
        root: "http.",
        lists: &[
            Hcm::descriptors,
            HcmTimes::descriptors,
            HcmFailures::descriptors,
            Router::descriptors,
            Tracing::descriptors,
        ],
    };
    /// The admin listener's: no router, no tracing.
    pub static ADMIN_SCOPE: Scope =
        Scope { root: "http.", lists: &[Hcm::descriptors, HcmTimes::descriptors, HcmFailures::descriptors] };
    /// `http.async-client.`: requests of the proxy's own.
    pub static ASYNC_CLIENT_SCOPE: Scope = Scope { root: "http.", lists: &[Router::descriptors] };

    crate::stats! {
        /// What every connection and request counts.
        pub Hcm {
            counter DOWNSTREAM_CX_TOTAL;
            gauge DOWNSTREAM_CX_ACTIVE;
            counter DOWNSTREAM_CX_HTTP1_TOTAL;
            gauge DOWNSTREAM_CX_HTTP1_ACTIVE;
            counter DOWNSTREAM_CX_HTTP2_TOTAL;
            gauge DOWNSTREAM_CX_HTTP2_ACTIVE;
            counter DOWNSTREAM_CX_SSL_TOTAL;
            gauge DOWNSTREAM_CX_SSL_ACTIVE;
            counter DOWNSTREAM_CX_DESTROY;
            counter DOWNSTREAM_CX_DESTROY_LOCAL;
            counter DOWNSTREAM_CX_DESTROY_REMOTE;
            counter DOWNSTREAM_CX_RX_BYTES_TOTAL;
            gauge DOWNSTREAM_CX_RX_BYTES_BUFFERED;
            counter DOWNSTREAM_CX_TX_BYTES_TOTAL;
            gauge DOWNSTREAM_CX_TX_BYTES_BUFFERED;
            counter DOWNSTREAM_RQ_TOTAL;
            gauge DOWNSTREAM_RQ_ACTIVE;
            counter DOWNSTREAM_RQ_HTTP1_TOTAL;
            counter DOWNSTREAM_RQ_HTTP2_TOTAL;
            counter DOWNSTREAM_RQ_COMPLETED;
            counter DOWNSTREAM_RQ_1XX;
            counter DOWNSTREAM_RQ_2XX;
            counter DOWNSTREAM_RQ_3XX;
            counter DOWNSTREAM_RQ_4XX;
            counter DOWNSTREAM_RQ_5XX;
        }
    }
    crate::stats! {
        /// How long connections and requests took.
        pub HcmTimes {
            histogram(milliseconds) DOWNSTREAM_CX_LENGTH_MS;
            histogram(milliseconds) DOWNSTREAM_RQ_TIME;
        }
    }
    crate::stats! {
        /// What went wrong, was refused, or is rare.
        pub HcmFailures {
            counter DOWNSTREAM_CX_DELAYED_CLOSE_TIMEOUT;
            counter DOWNSTREAM_CX_DESTROY_ACTIVE_RQ;
            counter DOWNSTREAM_CX_DESTROY_LOCAL_ACTIVE_RQ;
            counter DOWNSTREAM_CX_DESTROY_REMOTE_ACTIVE_RQ;
            counter DOWNSTREAM_CX_DRAIN_CLOSE;
            gauge DOWNSTREAM_CX_HTTP1_SOFT_DRAIN;
            counter DOWNSTREAM_CX_HTTP3_TOTAL;
            gauge DOWNSTREAM_CX_HTTP3_ACTIVE;
            counter DOWNSTREAM_CX_IDLE_TIMEOUT;
            counter DOWNSTREAM_CX_MAX_DURATION_REACHED;
            counter DOWNSTREAM_CX_MAX_REQUESTS_REACHED;
            counter DOWNSTREAM_CX_OVERLOAD_DISABLE_KEEPALIVE;
            counter DOWNSTREAM_CX_PROTOCOL_ERROR;
            counter DOWNSTREAM_CX_UPGRADES_TOTAL;
            gauge DOWNSTREAM_CX_UPGRADES_ACTIVE;
            counter DOWNSTREAM_FLOW_CONTROL_PAUSED_READING_TOTAL;
            counter DOWNSTREAM_FLOW_CONTROL_RESUMED_READING_TOTAL;
            counter DOWNSTREAM_RQ_FAILED_PATH_NORMALIZATION;
            counter DOWNSTREAM_RQ_HEADER_TIMEOUT;
            counter DOWNSTREAM_RQ_HTTP3_TOTAL;
            counter DOWNSTREAM_RQ_IDLE_TIMEOUT;
            counter DOWNSTREAM_RQ_MAX_DURATION_REACHED;
            counter DOWNSTREAM_RQ_NON_RELATIVE_PATH;
            counter DOWNSTREAM_RQ_OVERLOAD_CLOSE;
            counter DOWNSTREAM_RQ_REDIRECTED_WITH_NORMALIZED_PATH;
            counter DOWNSTREAM_RQ_REJECTED_VIA_IP_DETECTION;
            counter DOWNSTREAM_RQ_RESPONSE_BEFORE_RQ_COMPLETE;
            counter DOWNSTREAM_RQ_RX_RESET;
            counter DOWNSTREAM_RQ_TIMEOUT;
            counter DOWNSTREAM_RQ_TOO_LARGE;
            counter DOWNSTREAM_RQ_TOO_MANY_PREMATURE_RESETS;
            counter DOWNSTREAM_RQ_TX_RESET;
            counter DOWNSTREAM_RQ_WS_ON_NON_WS_ROUTE;
            counter RS_TOO_LARGE;
        }
    }
    crate::stats! {
        /// The router filter's.
        pub Router {
            counter NO_CLUSTER;
            counter NO_ROUTE;
            counter PASSTHROUGH_INTERNAL_REDIRECT_BAD_LOCATION;
            counter PASSTHROUGH_INTERNAL_REDIRECT_NO_ROUTE;
            counter PASSTHROUGH_INTERNAL_REDIRECT_PREDICATE;
            counter PASSTHROUGH_INTERNAL_REDIRECT_TOO_MANY_REDIRECTS;
            counter PASSTHROUGH_INTERNAL_REDIRECT_UNSAFE_SCHEME;
            counter RQ_DIRECT_RESPONSE;
            counter RQ_OVERLOAD_LOCAL_REPLY;
            counter RQ_REDIRECT;
            counter RQ_RESET_AFTER_DOWNSTREAM_RESPONSE_STARTED;
            counter RQ_TOTAL;
        }
    }
    crate::stats! {
        /// Whether requests were traced, and why.
        pub Tracing {
            counter CLIENT_ENABLED = "tracing.client_enabled";
            counter HEALTH_CHECK = "tracing.health_check";
            counter NOT_TRACEABLE = "tracing.not_traceable";
            counter RANDOM_SAMPLING = "tracing.random_sampling";
            counter SERVICE_FORCED = "tracing.service_forced";
        }
    }
}

/// `listener.<address or stat_prefix>.` and what stands below it.
pub mod listener {
    use super::{List, Scope};

    pub static SCOPE: Scope =
        Scope { root: "listener.", lists: &[Listener::descriptors, Extensions::descriptors, Times::descriptors] };
    /// `listener.admin.`
    pub static ADMIN_SCOPE: Scope = Scope { root: "listener.", lists: &[Listener::descriptors, Times::descriptors] };
    /// Named `<address>.worker_<n>`, or `admin.main_thread`.
    pub static WORKER_SCOPE: Scope = Scope { root: "listener.", lists: &[PerWorker::descriptors] };
    /// Named `<address>.http.<stat_prefix>`.
    pub static HTTP_SCOPE: Scope = Scope { root: "listener.", lists: &[ListenerHttp::descriptors] };

    crate::stats! {
        pub Listener {
            counter DOWNSTREAM_CX_TOTAL;
            gauge DOWNSTREAM_CX_ACTIVE;
            counter DOWNSTREAM_CX_DESTROY;
            counter DOWNSTREAM_CX_OVERFLOW;
            counter DOWNSTREAM_CX_OVERLOAD_REJECT;
            counter DOWNSTREAM_CX_TRANSPORT_SOCKET_CONNECT_TIMEOUT;
            counter DOWNSTREAM_GLOBAL_CX_OVERFLOW;
            counter DOWNSTREAM_LISTENER_FILTER_ERROR;
            counter DOWNSTREAM_LISTENER_FILTER_REMOTE_CLOSE;
            gauge DOWNSTREAM_PRE_CX_ACTIVE;
            counter DOWNSTREAM_PRE_CX_TIMEOUT;
            counter NO_FILTER_CHAIN_MATCH;
        }
    }
    crate::stats! {
        /// Filter configuration that did not arrive.
        pub Extensions {
            counter EXTENSION_CONFIG_MISSING;
            counter NETWORK_EXTENSION_CONFIG_MISSING;
        }
    }
    crate::stats! {
        pub Times {
            histogram(milliseconds) DOWNSTREAM_CX_LENGTH_MS;
            histogram(unspecified) CONNECTIONS_ACCEPTED_PER_SOCKET_EVENT;
        }
    }
    crate::stats! {
        /// The same connections by worker.
        pub PerWorker {
            counter WORKER_CX_TOTAL = "downstream_cx_total";
            gauge WORKER_CX_ACTIVE = "downstream_cx_active";
        }
    }
    crate::stats! {
        /// A connection manager's answers by listener.
        pub ListenerHttp {
            counter DOWNSTREAM_RQ_COMPLETED;
            counter DOWNSTREAM_RQ_1XX;
            counter DOWNSTREAM_RQ_2XX;
            counter DOWNSTREAM_RQ_3XX;
            counter DOWNSTREAM_RQ_4XX;
            counter DOWNSTREAM_RQ_5XX;
        }
    }
}

/// `tcp.<stat_prefix>.`
pub mod tcp {
    use super::{List, Scope};

    pub static SCOPE: Scope = Scope { root: "tcp.", lists: &[TcpProxy::descriptors] };

    crate::stats! {
        pub TcpProxy {
            counter DOWNSTREAM_CX_TOTAL;
            counter DOWNSTREAM_CX_NO_ROUTE;
            counter DOWNSTREAM_CX_DRAIN_CLOSE;
            counter DOWNSTREAM_CX_OVERLOAD_CLOSE;
            counter DOWNSTREAM_CX_RX_BYTES_TOTAL;
            gauge DOWNSTREAM_CX_RX_BYTES_BUFFERED;
            counter DOWNSTREAM_CX_TX_BYTES_TOTAL;
            gauge DOWNSTREAM_CX_TX_BYTES_BUFFERED;
            counter DOWNSTREAM_FLOW_CONTROL_PAUSED_READING_TOTAL;
            counter DOWNSTREAM_FLOW_CONTROL_RESUMED_READING_TOTAL;
            counter EARLY_DATA_RECEIVED_COUNT_TOTAL;
            counter IDLE_TIMEOUT;
            counter MAX_DOWNSTREAM_CONNECTION_DURATION;
            counter ROUTE_DELAYED_TOTAL;
            gauge UPSTREAM_FLUSH_ACTIVE;
            counter UPSTREAM_FLUSH_TOTAL;
        }
    }
}

/// `vhost.<virtual host>.vcluster.<name>.` and `vhost.<virtual host>.route.<stat_prefix>.`
pub mod vhost {
    use super::{List, Scope};

    pub static SCOPE: Scope = Scope { root: "vhost.", lists: &[VirtualCluster::descriptors] };

    crate::stats! {
        /// Named `<virtual host>.vcluster.<name>`, or `<virtual host>.route.<stat_prefix>`.
        pub VirtualCluster {
            counter UPSTREAM_RQ_RETRY;
            counter UPSTREAM_RQ_RETRY_LIMIT_EXCEEDED;
            counter UPSTREAM_RQ_RETRY_OVERFLOW;
            counter UPSTREAM_RQ_RETRY_SUCCESS;
            counter UPSTREAM_RQ_TIMEOUT;
            counter UPSTREAM_RQ_TOTAL;
        }
    }
}

/// The process: `server.`, `cluster_manager.`, `listener_manager.` and the like. Main counts these.
pub mod server {
    use super::{List, Scope};

    /// Name "".
    pub static SCOPE: Scope = Scope { root: "server.", lists: &[Server::descriptors, Initialization::descriptors] };
    /// Name "".
    pub static CLUSTER_MANAGER_SCOPE: Scope = Scope { root: "cluster_manager.", lists: &[ClusterManager::descriptors] };
    /// Name "".
    pub static LISTENER_MANAGER_SCOPE: Scope =
        Scope { root: "listener_manager.", lists: &[ListenerManager::descriptors] };
    /// Name "".
    pub static RUNTIME_SCOPE: Scope = Scope { root: "runtime.", lists: &[Runtime::descriptors] };
    /// Name "".
    pub static FILESYSTEM_SCOPE: Scope = Scope { root: "filesystem.", lists: &[AccessLogFile::descriptors] };
    /// Named `main_thread` or `worker_<n>`.
    pub static THREAD_CLUSTERS_SCOPE: Scope =
        Scope { root: "thread_local_cluster_manager.", lists: &[ThreadClusters::descriptors] };
    /// Named `main_thread`, `workers`, `server.main_thread` or `server.worker_<n>`.
    pub static WATCHDOG_SCOPE: Scope = Scope { root: "", lists: &[Watchdog::descriptors] };

    crate::stats! {
        pub Server {
            gauge FIPS_MODE = "compilation_settings.fips_mode";
            gauge CONCURRENCY;
            /// 4294967295 without certificates.
            gauge DAYS_UNTIL_FIRST_CERT_EXPIRING;
            counter DEBUG_ASSERTION_FAILURES;
            counter DROPPED_STAT_FLUSHES;
            counter DYNAMIC_UNKNOWN_FIELDS;
            counter ENVOY_BUG_FAILURES;
            counter ENVOY_NOTIFICATIONS;
            gauge HOT_RESTART_EPOCH;
            gauge LIVE;
            gauge MEMORY_ALLOCATED;
            gauge MEMORY_HEAP_SIZE;
            gauge MEMORY_PHYSICAL_SIZE;
            gauge PARENT_CONNECTIONS;
            gauge SECONDS_UNTIL_FIRST_OCSP_RESPONSE_EXPIRING;
            /// 0 live, 1 draining, 2 pre-initializing, 3 initializing.
            gauge STATE;
            counter STATIC_UNKNOWN_FIELDS;
            gauge STATS_RECENT_LOOKUPS;
            gauge TOTAL_CONNECTIONS;
            gauge UPTIME;
            /// The first three bytes of the commit, as a number.
            gauge VERSION;
            counter WIP_PROTOS;
        }
    }
    crate::stats! {
        pub Initialization {
            histogram(milliseconds) INITIALIZATION_TIME_MS;
        }
    }
    crate::stats! {
        pub ClusterManager {
            gauge ACTIVE_CLUSTERS;
            counter CLUSTER_ADDED;
            counter CLUSTER_MODIFIED;
            counter CLUSTER_REMOVED;
            counter CLUSTER_UPDATED;
            counter CLUSTER_UPDATED_VIA_MERGE;
            counter UPDATE_MERGE_CANCELLED;
            counter UPDATE_OUT_OF_MERGE_WINDOW;
            gauge WARMING_CLUSTERS;
        }
    }
    crate::stats! {
        pub ListenerManager {
            counter LISTENER_ADDED;
            counter LISTENER_CREATE_FAILURE;
            counter LISTENER_CREATE_SUCCESS;
            counter LISTENER_IN_PLACE_UPDATED;
            counter LISTENER_MODIFIED;
            counter LISTENER_REMOVED;
            counter LISTENER_STOPPED;
            gauge TOTAL_FILTER_CHAINS_DRAINING;
            gauge TOTAL_LISTENERS_ACTIVE;
            gauge TOTAL_LISTENERS_DRAINING;
            gauge TOTAL_LISTENERS_WARMING;
            gauge WORKERS_PINNED;
            gauge WORKERS_STARTED;
        }
    }
    crate::stats! {
        pub Runtime {
            gauge ADMIN_OVERRIDES_ACTIVE;
            gauge DEPRECATED_FEATURE_SEEN_SINCE_PROCESS_START;
            counter DEPRECATED_FEATURE_USE;
            counter LOAD_ERROR;
            counter LOAD_SUCCESS;
            gauge NUM_KEYS;
            gauge NUM_LAYERS;
            counter OVERRIDE_DIR_EXISTS;
            counter OVERRIDE_DIR_NOT_EXISTS;
        }
    }
    crate::stats! {
        /// Access logs to files.
        pub AccessLogFile {
            counter FLUSHED_BY_TIMER;
            counter REOPEN_FAILED;
            counter WRITE_BUFFERED;
            counter WRITE_COMPLETED;
            counter WRITE_FAILED;
            gauge WRITE_TOTAL_BUFFERED;
        }
    }
    crate::stats! {
        pub ThreadClusters {
            gauge CLUSTERS_INFLATED;
        }
    }
    crate::stats! {
        pub Watchdog {
            counter WATCHDOG_MEGA_MISS;
            counter WATCHDOG_MISS;
        }
    }
}

/// `ssl.` below a listener or a cluster that has a TLS context, what its transport socket counts beside, and
/// `sds.<name>.` of secrets that come from elsewhere.
pub mod tls {
    use super::{List, Scope};

    pub static SDS_SCOPE: Scope = Scope { root: "sds.", lists: &[Sds::descriptors] };

    crate::stats! {
        pub Sds {
            counter INIT_FETCH_TIMEOUT;
            counter KEY_ROTATION_FAILED;
            counter UPDATE_ATTEMPT;
            counter UPDATE_FAILURE;
            counter UPDATE_REJECTED;
            counter UPDATE_SUCCESS;
            /// In milliseconds since 1970.
            gauge UPDATE_TIME;
        }
    }
    crate::stats! {
        pub Ssl at ["ssl."] {
            counter CONNECTION_ERROR;
            counter FAIL_VERIFY_CERT_HASH;
            counter FAIL_VERIFY_ERROR;
            counter FAIL_VERIFY_NO_CERT;
            counter FAIL_VERIFY_SAN;
            counter HANDSHAKE;
            counter NO_CERTIFICATE;
            counter OCSP_STAPLE_FAILED;
            counter OCSP_STAPLE_OMITTED;
            counter OCSP_STAPLE_REQUESTS;
            counter OCSP_STAPLE_RESPONSES;
            counter SESSION_REUSED;
        }
    }
    crate::stats! {
        pub SocketFactory at ["client_ssl_socket_factory.", "server_ssl_socket_factory."] {
            counter DOWNSTREAM_CONTEXT_SECRETS_NOT_READY;
            counter SSL_CONTEXT_UPDATE_BY_SDS;
            counter UPSTREAM_CONTEXT_SECRETS_NOT_READY;
        }
    }
}

/// What is counted of a subscription to configuration.
pub mod subscription {
    use super::{List, Scope};

    /// Name "".
    pub static CDS_SCOPE: Scope = Scope { root: "cluster_manager.cds.", lists: &[Updates::descriptors] };
    /// Name "".
    pub static LDS_SCOPE: Scope = Scope { root: "listener_manager.lds.", lists: &[Updates::descriptors] };
    /// Not Envoy's. Name "".
    pub static RELOAD_SCOPE: Scope = Scope { root: "server.reload.", lists: &[Updates::descriptors] };
    /// Named `<stat_prefix>.rds.<route_config_name>`.
    pub static RDS_SCOPE: Scope = Scope { root: "http.", lists: &[Updates::descriptors, Routes::descriptors] };

    /// Named `<stat_prefix>.scoped_rds.<name>`.
    pub static SRDS_SCOPE: Scope = Scope { root: "http.", lists: &[Updates::descriptors, Scopes::descriptors] };

    /// Named as the filter.
    pub static HTTP_FILTER_SCOPE: Scope = Scope {
        root: "extension_config_discovery.http_filter.",
        lists: &[Updates::descriptors, Extension::descriptors],
    };

    /// Text readout: what the last good answer calls its version.
    pub const VERSION_TEXT: &str = "version_text";

    crate::stats! {
        pub Updates {
            counter INIT_FETCH_TIMEOUT;
            counter UPDATE_ATTEMPT;
            counter UPDATE_FAILURE;
            counter UPDATE_REJECTED;
            counter UPDATE_SUCCESS;
            /// When the last good answer came, in milliseconds since 1970.
            gauge UPDATE_TIME;
            gauge VERSION;
        }
    }
    crate::stats! {
        pub Routes {
            counter CONFIG_RELOAD;
            counter UPDATE_EMPTY;
            /// When routes changed last, in milliseconds since 1970.
            gauge CONFIG_RELOAD_TIME_MS;
        }
    }
    crate::stats! {
        pub Extension {
            /// In Envoy: the type or the terminal filter of one place is wrong for another. Each place has its own here.
            counter CONFIG_CONFLICT;
            counter CONFIG_FAIL;
            counter EXTENSION_RELOAD = "config_reload";
        }
    }
    crate::stats! {
        pub Scopes {
            /// Those whose routes have a name, and so come by themselves.
            gauge ACTIVE_SCOPES;
            gauge ALL_SCOPES;
            counter SCOPES_RELOAD = "config_reload";
            /// When scopes changed last, in milliseconds since 1970.
            gauge SCOPES_RELOAD_TIME_MS = "config_reload_time_ms";
            /// None: scopes on demand are refused.
            gauge ON_DEMAND_SCOPES;
            counter SCOPES_EMPTY = "update_empty";
        }
    }
}

/// `overload.<resource or action>.`
pub mod overload {
    use super::Scope;

    pub static SCOPE: Scope = Scope { root: "overload.", lists: &[] };

    crate::stats! {
        pub Resource {
            counter FAILED_UPDATES;
            counter SKIPPED_UPDATES;
            /// In percent.
            gauge PRESSURE;
        }
    }
    crate::stats! {
        pub Action {
            gauge ACTIVE;
            gauge SCALE_PERCENT;
            counter SHRINK_COUNT;
        }
    }
}
