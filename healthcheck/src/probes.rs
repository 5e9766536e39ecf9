//! The protocols of active checks. A new one is one file, a variant here and one in the configuration.

pub mod grpc;
pub mod http;
mod kept;
pub mod tcp;

use std::rc::Rc;

use crate::probe::{Probe, ProbeContext};

/// What is asked, checked; one for all hosts of a cluster.
#[derive(Clone)]
pub enum Protocol {
    Http(Rc<http::HttpCheck>),
    Tcp(Rc<tcp::TcpCheck>),
    Grpc(Rc<grpc::GrpcCheck>),
}

impl Protocol {
    /// For one host.
    pub fn probe(&self, context: &ProbeContext) -> Box<dyn Probe> {
        let context = context.clone();
        match self {
            Self::Http(check) => Box::new(http::HttpProbe::new(check.clone(), context)),
            Self::Tcp(check) => Box::new(tcp::TcpProbe::new(check.clone(), context)),
            Self::Grpc(check) => Box::new(grpc::GrpcProbe::new(check.clone(), context)),
        }
    }

    /// `envoy.data.core.v3.HealthCheckerType`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Http(_) => "HTTP",
            Self::Tcp(_) => "TCP",
            Self::Grpc(_) => "GRPC",
        }
    }
}
