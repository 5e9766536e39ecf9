//! What the layers from here up find on the worker they run on.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use nuncio_core::extension::WorkerContext;
use nuncio_core::net::Connect;
use tokio::task::AbortHandle;

use super::Clusters;
use crate::codec::Buffers;
use crate::net::limits::DescriptorLimit;

/// One worker thread's belongings. Everything in it is born and dies on that thread.
pub struct Worker {
    pub context: WorkerContext,
    pub buffers: Rc<Buffers>,
    pub clusters: Rc<Clusters>,
    pub connect: Rc<dyn Connect>,
    pub connection_ids: ConnectionIds,
    /// Which descriptors are not for connections.
    pub descriptors: DescriptorLimit,
    /// Tasks that ended by a panic: a bug each time. The server reports them when it ends.
    pub panics: Cell<u64>,
}

impl Worker {
    /// Runs a connection's task on this worker. A panic ends that connection only: it is logged
    /// and counted, and what the task held is dropped.
    pub fn spawn(self: &Rc<Self>, connection: u64, task: impl Future<Output = ()> + 'static) -> AbortHandle {
        tokio::task::spawn_local(Caught { task, connection, worker: self.clone() }).abort_handle()
    }
}

/// Numbers connections of the whole process, downstream, upstream and admin alike, from 0 as Envoy does.
#[derive(Debug, Clone, Default)]
pub struct ConnectionIds(Arc<AtomicU64>);

impl ConnectionIds {
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }
}

pin_project_lite::pin_project! {
    struct Caught<F> {
        #[pin]
        task: F,
        connection: u64,
        worker: Rc<Worker>,
    }
}

impl<F: Future<Output = ()>> Future for Caught<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        // Whatever the panic left half done belongs to the task, and is dropped with it.
        catch_unwind(AssertUnwindSafe(|| this.task.poll(cx))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("?");
            tracing::error!(conn = *this.connection, bug = true, "the task of a connection panicked: {text}");
            this.worker.panics.set(this.worker.panics.get() + 1);
            Poll::Ready(())
        })
    }
}
