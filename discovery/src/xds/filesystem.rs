//! A file of resources, read again when another file takes its place.
//!
//! - [`watch`]: which files changed

pub mod watch;

use std::path::PathBuf;

use nuncio_api::pb::envoy::service::discovery::v3::DiscoveryResponse;
use nuncio_api::{ReadLimits, Source};

use super::config_source::FileSource;
use super::fetch::{FetchError, read};
use watch::{Files, Watched};

pub struct File {
    path: PathBuf,
    place: Watched,
    /// Moves into it count too (`watched_directory`).
    directory: Option<Watched>,
    was_read: bool,
}

impl File {
    pub(super) fn new(source: &FileSource, files: &Files) -> Self {
        let directory = source.watched_directory.as_ref().map(|directory| files.watch_directory(directory));
        Self { place: files.watch(&source.path), path: source.path.clone(), directory, was_read: false }
    }

    pub(super) async fn next(&mut self) -> Result<DiscoveryResponse, FetchError> {
        if self.was_read {
            self.changed().await;
        }
        self.was_read = true;
        self.read().await.map_err(FetchError::Failure)
    }

    async fn changed(&self) {
        let Some(directory) = &self.directory else { return self.place.changed().await };
        tokio::select! {
            () = self.place.changed() => {}
            () = directory.changed() => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn text(version: &str) -> String {
        format!("version_info: '{version}'\nresources: []\n")
    }

    fn file(path: &Path) -> File {
        File::new(&FileSource { path: path.to_owned(), watched_directory: None }, &Files::default())
    }

    async fn version(file: &mut File) -> String {
        file.next().await.unwrap().version_info
    }

    #[tokio::test(flavor = "local")]
    async fn what_takes_its_place_is_read_and_what_is_written_into_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("one")).unwrap();
        fs::create_dir(at("two")).unwrap();
        fs::write(at("one/eds.yaml"), text("1")).unwrap();
        fs::write(at("two/eds.yaml"), text("2")).unwrap();
        std::os::unix::fs::symlink("one", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/eds.yaml", at("eds.yaml")).unwrap();
        let mut file = file(&at("eds.yaml"));
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
        let Err(FetchError::Failure(reason)) = file(&path).next().await else { panic!("read") };
        assert!(reason.contains("eds.yaml:2:1: YAML"), "{reason}");
    }
}
