//! A file of resources, read again when another file takes its place: by a rename over it, or by a turn of a link on the
//! way to it, as mounted configuration maps do. Writing into the file is no signal, as in Envoy: half a text would be
//! read. The place is looked at five times a second; that needs no descriptor for each file, and sees links of any
//! depth.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nuncio_api::pb::envoy::service::discovery::v3::DiscoveryResponse;
use nuncio_api::{ReadLimits, Source};

use super::fetch::{FetchError, read};

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A file and what was in its place when it was read last.
pub struct File {
    path: PathBuf,
    seen: Option<Identity>,
}

/// Another file is another number, or the same number born at another time.
type Identity = (u64, u64, Option<SystemTime>);

impl File {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    pub(super) async fn next(&mut self) -> Result<DiscoveryResponse, FetchError> {
        loop {
            // While it is away, what was read holds.
            let now = identity(&self.path).await;
            if now.is_some() && now != self.seen {
                self.seen = now;
                return self.read().await.map_err(FetchError::Failure);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn read(&self) -> Result<DiscoveryResponse, String> {
        let path = self.path.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let source = Source::file(&path, &ReadLimits::default()).map_err(|problem| problem.to_string())?;
            read(source)
        });
        reading.await.map_err(|e| e.to_string())?
    }
}

async fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    let found = tokio::fs::metadata(path).await.ok()?;
    Some((found.dev(), found.ino(), found.created().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn text(version: &str) -> String {
        format!("version_info: '{version}'\nresources: []\n")
    }

    async fn version(file: &mut File) -> String {
        file.next().await.unwrap().version_info
    }

    #[tokio::test(flavor = "local")]
    async fn a_rename_over_it_and_a_turn_of_its_links_are_seen_and_a_write_into_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("one")).unwrap();
        fs::create_dir(at("two")).unwrap();
        fs::write(at("one/eds.yaml"), text("1")).unwrap();
        fs::write(at("two/eds.yaml"), text("2")).unwrap();
        std::os::unix::fs::symlink("one", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/eds.yaml", at("eds.yaml")).unwrap();
        let mut file = File::new(at("eds.yaml"));
        assert_eq!(version(&mut file).await, "1");
        fs::write(at("one/eds.yaml"), text("written into")).unwrap();
        std::os::unix::fs::symlink("two", at("..new")).unwrap();
        fs::rename(at("..new"), at("..data")).unwrap();
        assert_eq!(version(&mut file).await, "2");
        fs::write(at("new.yaml"), text("3")).unwrap();
        fs::rename(at("new.yaml"), at("two/eds.yaml")).unwrap();
        assert_eq!(version(&mut file).await, "3");
    }

    #[tokio::test(flavor = "local")]
    async fn what_cannot_be_read_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("eds.yaml");
        fs::write(&path, "resources: [{").unwrap();
        let Err(FetchError::Failure(reason)) = File::new(path.clone()).next().await else { panic!("read") };
        assert!(reason.contains("eds.yaml:2:1: YAML"), "{reason}");
    }
}
