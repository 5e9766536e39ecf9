//! Registrations on disk: a line of JSON for each change, acknowledged when the disk has it. What comes while the disk
//! is busy is written together. When most lines say what is no longer so, or the disk has failed, the file is written
//! anew beside itself and takes its own place. The end of the file may be half a line: nobody was told that it is there.

use std::cell::{Cell, RefCell};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};

/// A file may have so many lines before anybody asks whether they are still needed.
const FEW_LINES: usize = 1024;

/// A line, and who waits for it.
type Waiting = (String, oneshot::Sender<Result<(), String>>);

/// The way to the file.
pub(super) struct Journal {
    waiting: RefCell<Vec<Waiting>>,
    wake: Notify,
    lines: Cell<usize>,
}

/// The file itself, held by nobody else.
pub(super) struct Store {
    path: PathBuf,
    /// None after it failed.
    file: Option<File>,
}

impl Store {
    /// Opens the file, or makes it, and returns its lines.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<String>)> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        lock(&file)?;
        let mut text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let file = if whole < text.len() {
            text.truncate(whole);
            // The next line must not stand behind half of another.
            file.set_len(whole as u64)?;
            file
        } else {
            file
        };
        Ok((Self { path: path.to_owned(), file: Some(file) }, text.lines().map(str::to_owned).collect()))
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        if written.is_err() {
            // Who knows what is at its end now.
            self.file = None;
        }
        written
    }

    fn write_anew(&mut self, text: &str) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&beside)?;
        lock(&file)?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        self.file = Some(file);
        Ok(())
    }
}

fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|_| io::Error::other("it is another server's"))
}

impl Journal {
    pub(super) fn new(lines: usize) -> Rc<Self> {
        Rc::new(Self { waiting: RefCell::default(), wake: Notify::new(), lines: Cell::new(lines) })
    }

    /// Ends when the disk has the line, or says why it has not.
    pub(super) async fn append(&self, line: String) -> Result<(), String> {
        let (sender, written) = oneshot::channel();
        self.waiting.borrow_mut().push((line, sender));
        self.wake.notify_one();
        written.await.unwrap_or_else(|_| Err("the server ends".to_owned()))
    }

    /// Writes for ever. `whole`: how many lines say all that is so, and the lines themselves.
    pub(super) async fn run(self: Rc<Self>, mut store: Store, whole: impl Fn(bool) -> (usize, String)) {
        loop {
            self.wake.notified().await;
            let waiting = self.waiting.take();
            if waiting.is_empty() {
                continue;
            }
            let live = whole(false).0;
            let crowded = self.lines.get() + waiting.len() > FEW_LINES + 2 * live;
            // What waits is in effect already, so that all there is includes it.
            let anew = (crowded || store.file.is_none()).then(|| whole(true));
            let text = waiting.iter().map(|(line, _)| line.as_str()).collect::<String>();
            let lines = anew.as_ref().map_or(self.lines.get() + waiting.len(), |(lines, _)| *lines);
            let writing = tokio::task::spawn_blocking(move || {
                let result = match &anew {
                    Some((_, all)) => store.write_anew(all),
                    None => store.append(&text),
                };
                (store, result)
            });
            let Ok((back, result)) = writing.await else { return };
            store = back;
            let result = result.map_err(|error| format!("{}: {error}", store.path.display()));
            match &result {
                Ok(()) => self.lines.set(lines),
                Err(reason) => tracing::error!("registrations cannot be stored: {reason}"),
            }
            // Whoever waited may be gone.
            waiting.into_iter().for_each(|(_, sender)| drop(sender.send(result.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_at_the_end_is_cut_and_the_file_is_held_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        fs::write(&path, "a\nb\nhal").unwrap();
        let (mut store, lines) = Store::open(&path).unwrap();
        assert_eq!(lines, ["a", "b"]);
        assert!(Store::open(&path).is_err());
        store.append("c\n").unwrap();
        store.write_anew("x\n").unwrap();
        store.append("y\n").unwrap();
        assert!(Store::open(&path).is_err());
        drop(store);
        assert_eq!(Store::open(&path).unwrap().1, ["x", "y"]);
    }

    #[tokio::test(flavor = "local")]
    async fn a_file_of_old_news_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let (store, _) = Store::open(&path).unwrap();
        let journal = Journal::new(0);
        let running = tokio::task::spawn_local(journal.clone().run(store, |_| (1, "all\n".to_owned())));
        for _ in 0..FEW_LINES + 2 {
            journal.waiting.borrow_mut().push(("x\n".into(), oneshot::channel().0));
        }
        journal.append("y\n".to_owned()).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "all\n");
        journal.append("z\n".to_owned()).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "all\nz\n");
        running.abort();
    }

    #[tokio::test(flavor = "local")]
    async fn a_disk_that_failed_is_tried_again_with_all_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone/store");
        let store = Store { path: path.clone(), file: None };
        let journal = Journal::new(0);
        let running = tokio::task::spawn_local(journal.clone().run(store, |_| (1, "all\n".to_owned())));
        assert!(journal.append("a\n".to_owned()).await.is_err());
        fs::create_dir(folder.path().join("gone")).unwrap();
        journal.append("b\n".to_owned()).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "all\n");
        running.abort();
    }
}
