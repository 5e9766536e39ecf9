//! What a thousand new files of clusters and routes cost the requests that run meanwhile, with what must
//! hold: no request fails, and the proxy ends with the descriptors, threads, tasks, connections and memory it began with.
//!
//! Each update renames a new CDS and a new RDS file over the old ones. The cluster changes its host and its
//! timeout, so that it is made anew each time, and the route changes its timeout.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;

use crate::admin::Admin;
use crate::target::{self, Process};
use crate::{LoadArgs, generator, machine, peers};

const UPDATES: u32 = 1000;
/// The updates after which caches and pools have their size.
const WARM: u32 = 200;
const KINDS: &str = "type.googleapis.com/envoy.config";

struct Files {
    folder: PathBuf,
    upstreams: [u16; 2],
}

impl Files {
    fn replace(&self, version: u32) -> anyhow::Result<()> {
        let port = self.upstreams[version as usize % 2];
        let (connect, route) = (1 + version % 7, 10 + version % 5);
        self.put(
            "cds.yaml",
            &format!(
                "version_info: '{version}'\nresources:\n- {{'@type': {KINDS}.cluster.v3.Cluster, name: up, connect_timeout: \
                 {connect}s, load_assignment: {{cluster_name: up, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
                 {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]}}}}\n"
            ),
        )?;
        self.put(
            "rds.yaml",
            &format!(
                "version_info: '{version}'\nresources:\n- {{'@type': {KINDS}.route.v3.RouteConfiguration, name: r, \
                 virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: up, timeout: \
                 {route}s}}}}]}}]}}\n"
            ),
        )
    }

    fn put(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let new = self.folder.join(format!(".{name}"));
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.folder.join(name))?)
    }

    fn bootstrap(&self, admin: u16, web: u16) -> String {
        include_str!("../configs/updates.yaml")
            .replace("@ADMIN@", &admin.to_string())
            .replace("@PORT@", &web.to_string())
            .replace("@FOLDER@", &self.folder.display().to_string())
    }
}

/// What must not grow.
#[derive(Debug, Clone, Copy)]
struct Holding {
    descriptors: usize,
    threads: usize,
    tasks: u64,
    memory: u64,
}

impl Holding {
    fn of(proxy: &Process, admin: Admin) -> anyhow::Result<Self> {
        let (descriptors, threads) = proxy.holds();
        Ok(Self { descriptors, threads, tasks: admin.tasks()?, memory: proxy.memory() })
    }
}

pub fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let args = LoadArgs { rate: args.rate.or(Some(2000)), ..args.clone() };
    let each = Duration::from_millis(50);
    println!("{}", machine::describe());
    let folder = tempfile::tempdir()?;
    let upstreams = [Process::upstream()?, Process::upstream()?];
    let files = Files { folder: folder.path().to_owned(), upstreams: [upstreams[0].port, upstreams[1].port] };
    files.replace(0)?;
    let (admin, web) = (Admin(peers::free_port()?), peers::free_port()?);
    let bootstrap = folder.path().join("bootstrap.yaml");
    fs::write(&bootstrap, files.bootstrap(admin.0, web))?;
    let proxy = Process::start(target::own_proxy(Path::new(&bootstrap), args.concurrency)?, web, "nuncio")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A second on either side for clients to connect and to finish.
    let duration = each * UPDATES + Duration::from_secs(2);
    let (outcome, warm) = runtime.block_on(async {
        let updates = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut warm = Holding::of(&proxy, admin)?;
            for version in 1..=UPDATES {
                files.replace(version)?;
                tokio::time::sleep(each).await;
                if version == WARM {
                    warm = Holding::of(&proxy, admin)?;
                }
            }
            anyhow::Ok(warm)
        };
        let (outcome, warm) = tokio::join!(generator::run(proxy.address(), &args, duration), updates);
        warm.map(|warm| (outcome, warm))
    })?;
    let end = Holding::of(&proxy, admin)?;
    println!(
        "{} requests, {} errors, {} cut answers, p99 {:.2} ms, longest {:.1} ms",
        outcome.requests,
        outcome.errors,
        outcome.cut,
        outcome.latency.quantile(0.99).as_secs_f64() * 1e3,
        outcome.latency.max().as_secs_f64() * 1e3
    );
    println!("after {WARM} updates: {warm:?}\nafter {UPDATES} updates: {end:?}");
    let seen = [admin.stat("cluster_manager.cds.update_success")?, admin.stat("http.in.rds.r.update_success")?];
    let refused = [admin.stat("cluster_manager.cds.update_rejected")?, admin.stat("http.in.rds.r.update_rejected")?];
    let (hosts, clusters) =
        (admin.stat("cluster.up.membership_total")?, admin.stat("cluster_manager.active_clusters")?);
    println!(
        "seen: {seen:?} of clusters and routes, refused: {refused:?}; at the end {clusters} cluster of {hosts} host"
    );
    ensure!(outcome.errors == 0 && outcome.cut == 0, "clients saw errors");
    ensure!(seen.iter().all(|n| *n > u64::from(UPDATES) * 9 / 10) && refused == [0, 0], "updates were lost or refused");
    ensure!((hosts, clusters) == (1, 1), "old clusters or hosts are left");
    // The clients have left, so that there may be fewer.
    ensure!(end.descriptors <= warm.descriptors && end.threads <= warm.threads, "descriptors or threads grew");
    ensure!(end.tasks <= warm.tasks, "tasks grew");
    ensure!(end.memory <= warm.memory + (1 << 20), "memory grew");
    println!("holds: no request failed and nothing grew");
    Ok(())
}
