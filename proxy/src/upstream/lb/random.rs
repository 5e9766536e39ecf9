//! RANDOM: any host, each as likely as the others; weights are ignored, as Envoy does.

use std::sync::Arc;

use nuncio_core::upstream::Host;

use super::Policy;

pub struct Random;

impl Policy for Random {
    type List = ();

    fn list_changed(&mut self, (): &mut ()) {}

    fn pick<'a>(&mut self, (): &mut (), hosts: &'a [Arc<Host>], random: u64) -> Option<&'a Arc<Host>> {
        hosts.get((random % hosts.len() as u64) as usize)
    }
}
