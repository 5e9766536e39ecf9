//! Which files changed: told by the kernel (inotify), for any number of files by one descriptor.
//!
//! A file has changed when another took its place: by a rename over it, or by a turn of a link anywhere on the way to it,
//! as mounted configuration maps do it (`..data`). Writing into the file is no signal, as in Envoy: half a text would be
//! read. So what is watched are not files but the names on the way: each in its directory, links followed. Where the
//! kernel refuses (there is a limit on watches, user-pain T5), a file's place is looked at five times a second instead.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::{Duration, SystemTime};

use nix::sys::inotify::{AddWatchFlags as Mask, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// As many links may lead from one to the next (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The files that are watched on the main thread. A cheap handle.
#[derive(Clone, Default)]
pub struct Files(Rc<Table>);

/// One file or directory that is watched for as long as this lives.
pub struct Watched {
    table: Rc<Table>,
    id: u64,
    signal: Rc<Notify>,
}

#[derive(Default)]
struct Table(RefCell<State>);

#[derive(Default)]
struct State {
    queue: Queue,
    watches: HashMap<u64, Watch>,
    /// Who wants to hear of a name in a directory.
    names: HashMap<(WatchDescriptor, OsString), Vec<u64>>,
    /// Who wants to hear of all that moves into a directory.
    arrivals: HashMap<WatchDescriptor, Vec<u64>>,
    /// How often a directory stands in the two above.
    uses: HashMap<WatchDescriptor, usize>,
    next: u64,
    /// Looks at what the kernel does not watch.
    looking: Option<Running>,
}

#[derive(Default)]
enum Queue {
    #[default]
    NotOpened,
    Open(Rc<AsyncFd<Descriptor>>, #[allow(dead_code)] Running),
    /// The kernel has none for us.
    Refused,
}

struct Descriptor(Inotify);

struct Watch {
    path: PathBuf,
    /// Of a directory: whatever moves into it counts.
    arrivals: bool,
    stops: Vec<(WatchDescriptor, Option<OsString>)>,
    seen: Option<Identity>,
    /// A new file is in its place, and somebody still writes it.
    being_written: bool,
    /// The kernel does not watch all of it.
    looked_at: bool,
    signal: Rc<Notify>,
}

/// Another file is another number, or the same number born at another time.
type Identity = (u64, u64, Option<SystemTime>);

/// A task that ends when this is dropped.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

// === impl Files, Watched ===

impl Files {
    /// Watches what stands at `path` from now on; it need not be there yet.
    pub fn watch(&self, path: &Path) -> Watched {
        self.add(path, false)
    }

    /// Watches what moves into a directory, and whether another directory takes its place.
    pub fn watch_directory(&self, path: &Path) -> Watched {
        self.add(path, true)
    }

    fn add(&self, path: &Path, arrivals: bool) -> Watched {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let signal = Rc::new(Notify::new());
        let id = {
            let mut state = self.0.0.borrow_mut();
            state.open(&self.0);
            state.next += 1;
            let id = state.next;
            let watch = Watch {
                seen: identity(&path),
                path,
                arrivals,
                stops: Vec::new(),
                being_written: false,
                looked_at: false,
                signal: signal.clone(),
            };
            state.watches.insert(id, watch);
            state.anchor(id);
            // It may have moved before the kernel watched.
            state.look(id, false);
            id
        };
        self.0.look_if_needed();
        Watched { table: self.0.clone(), id, signal }
    }
}

impl Watched {
    /// Resolves when there is another file, once for all that changed since the last call.
    pub async fn changed(&self) {
        self.signal.notified().await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = self.table.0.borrow_mut();
        state.release(self.id);
        state.watches.remove(&self.id);
    }
}

// === impl Table, State ===

impl Table {
    /// What the kernel tells, for as long as there is a table.
    async fn listen(table: Weak<Self>, queue: Rc<AsyncFd<Descriptor>>) {
        while let Ok(mut ready) = queue.readable().await {
            match queue.get_ref().0.read_events() {
                Ok(events) => {
                    let Some(table) = table.upgrade() else { return };
                    table.0.borrow_mut().hear(&events);
                    table.look_if_needed();
                }
                Err(nix::errno::Errno::EAGAIN) => ready.clear_ready(),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => {
                    tracing::error!("files are not watched any more: {error}");
                    return;
                }
            }
        }
    }

    fn look_if_needed(self: &Rc<Self>) {
        let mut state = self.0.borrow_mut();
        if state.looking.is_some() || !state.watches.values().any(|watch| watch.looked_at) {
            return;
        }
        tracing::warn!("the kernel refuses to watch files (fs.inotify.max_user_watches?): they are looked at instead");
        let table = Rc::downgrade(self);
        let looking = tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(table) = table.upgrade() else { return };
                table.0.borrow_mut().look_at_the_unwatched();
            }
        });
        state.looking = Some(Running(looking.abort_handle()));
    }
}

impl State {
    fn open(&mut self, table: &Rc<Table>) {
        if !matches!(self.queue, Queue::NotOpened) {
            return;
        }
        let queue = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(std::io::Error::from);
        // Deprecated for descriptors that somebody else could close; this one is closed with its owner and not before.
        #[allow(deprecated)]
        let queue = queue.and_then(|queue| AsyncFd::with_interest(Descriptor(queue), Interest::READABLE));
        self.queue = match queue {
            Ok(queue) => {
                let queue = Rc::new(queue);
                let listening = tokio::task::spawn_local(Table::listen(Rc::downgrade(table), queue.clone()));
                Queue::Open(queue, Running(listening.abort_handle()))
            }
            Err(_) => Queue::Refused,
        };
    }

    fn look_at_the_unwatched(&mut self) {
        let ids: Vec<u64> = self.watches.iter().filter(|(_, watch)| watch.looked_at).map(|(id, _)| *id).collect();
        for id in ids {
            self.look(id, false);
        }
    }

    fn hear(&mut self, events: &[InotifyEvent]) {
        for event in events {
            if event.mask.contains(Mask::IN_Q_OVERFLOW) {
                let all: Vec<u64> = self.watches.keys().copied().collect();
                all.into_iter().for_each(|id| self.look_anew(id, false));
                continue;
            }
            let Some(name) = &event.name else {
                // The directory itself is gone, or elsewhere.
                let here = |watch: &Watch| watch.stops.iter().any(|(wd, _)| *wd == event.wd);
                let all: Vec<u64> = self.watches.iter().filter(|(_, watch)| here(watch)).map(|(id, _)| *id).collect();
                all.into_iter().for_each(|id| self.look_anew(id, false));
                continue;
            };
            let moved = event.mask.contains(Mask::IN_MOVED_TO);
            for id in self.names.get(&(event.wd, name.clone())).cloned().unwrap_or_default() {
                self.heard_of(id, name, event.mask);
            }
            for id in self.arrivals.get(&event.wd).filter(|_| moved).cloned().unwrap_or_default() {
                if let Some(watch) = self.watches.get(&id) {
                    watch.signal.notify_one();
                }
            }
        }
    }

    /// A name on the way of that watch stands for something else now.
    fn heard_of(&mut self, id: u64, name: &OsStr, mask: Mask) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        let last = watch.stops.iter().rev().find_map(|(_, name)| name.as_deref());
        if mask.contains(Mask::IN_CREATE) && last == Some(name) {
            // A file that was just made has its text yet to come, unless it is a link or a second name of one that has.
            let link = watch.path.is_symlink() && watch.path.file_name() == Some(name);
            let made = fs::metadata(&watch.path).is_ok_and(|found| found.is_file() && found.nlink() == 1);
            watch.being_written |= made && !link;
        }
        if mask.contains(Mask::IN_CLOSE_WRITE) {
            if std::mem::take(&mut watch.being_written) {
                self.look_anew(id, true);
            }
            return;
        }
        if mask.contains(Mask::IN_MOVED_TO) {
            watch.being_written = false;
        }
        self.look_anew(id, mask.contains(Mask::IN_MOVED_TO));
    }

    fn look_anew(&mut self, id: u64, surely: bool) {
        self.release(id);
        self.anchor(id);
        self.look(id, surely);
    }

    /// Signals if another file is there, or if `surely` whatever is there counts as another.
    fn look(&mut self, id: u64, surely: bool) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        let now = identity(&watch.path);
        // While it is away, what was read holds.
        if now.is_some() && !watch.being_written && (surely || now != watch.seen) {
            watch.seen = now;
            watch.signal.notify_one();
        }
    }

    /// Asks the kernel to watch every name on the way.
    fn anchor(&mut self, id: u64) {
        let Some(watch) = self.watches.get(&id) else { return };
        let (path, arrivals) = (watch.path.clone(), watch.arrivals);
        let mut stops = Vec::new();
        let mut refused = false;
        let last = on_the_way(&path, |directory, name| match self.watch_in(directory) {
            Ok(wd) => stops.push((wd, Some(name.to_owned()))),
            // A directory in which one may not look has names that do not change much.
            Err(_) => refused |= Some(name) == path.file_name(),
        });
        if let (true, Some(directory)) = (arrivals, last) {
            match self.watch_in(&directory) {
                Ok(wd) => stops.push((wd, None)),
                Err(_) => refused = true,
            }
        }
        for (wd, name) in &stops {
            *self.uses.entry(*wd).or_default() += 1;
            match name {
                Some(name) => self.names.entry((*wd, name.clone())).or_default().push(id),
                None => self.arrivals.entry(*wd).or_default().push(id),
            }
        }
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.stops = stops;
            watch.looked_at = refused;
        }
    }

    fn watch_in(&self, directory: &Path) -> nix::Result<WatchDescriptor> {
        let Queue::Open(queue, _) = &self.queue else { return Err(nix::errno::Errno::ENOSPC) };
        let names = Mask::IN_MOVED_TO | Mask::IN_CREATE | Mask::IN_CLOSE_WRITE;
        let itself = Mask::IN_MOVE_SELF | Mask::IN_DELETE_SELF;
        queue.get_ref().0.add_watch(directory, names | itself | Mask::IN_ONLYDIR)
    }

    fn release(&mut self, id: u64) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        for (wd, name) in std::mem::take(&mut watch.stops) {
            let empty = |ids: &mut Vec<u64>| {
                ids.retain(|known| *known != id);
                ids.is_empty()
            };
            match name {
                Some(name) => {
                    let key = (wd, name);
                    if self.names.get_mut(&key).is_some_and(empty) {
                        self.names.remove(&key);
                    }
                }
                None => {
                    if self.arrivals.get_mut(&wd).is_some_and(empty) {
                        self.arrivals.remove(&wd);
                    }
                }
            }
            let Some(uses) = self.uses.get_mut(&wd) else { continue };
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&wd);
                if let Queue::Open(queue, _) = &self.queue {
                    // A directory that is gone is not watched any more anyway.
                    let _ = queue.get_ref().0.rm_watch(wd);
                }
            }
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.created().ok()))
}

/// Every name that must be looked up to find `path`, with the directory in which it stands, links followed; as far as
/// there is something. Returns where the way ended, if it is whole.
fn on_the_way(path: &Path, mut each: impl FnMut(&Path, &OsStr)) -> Option<PathBuf> {
    // What is still to be walked, the next one last.
    let mut ahead: Vec<OsString> = parts(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        each(&at, &part);
        let next = at.join(&part);
        let found = fs::symlink_metadata(&next).ok()?;
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        let target = fs::read_link(&next).ok().filter(|_| links <= MOST_LINKS)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        ahead.append(&mut parts(&target));
    }
    Some(at)
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut parts: Vec<OsString> = named.collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::os::unix::fs::symlink;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Another file takes the place.
        fn put(&self, name: &str, text: &str) {
            fs::write(self.at("..new"), text).unwrap();
            fs::rename(self.at("..new"), self.at(name)).unwrap();
        }
    }

    /// What was done before this is known by now: the kernel tells things in their order.
    async fn settled(files: &Files) {
        let folder = Folder::new();
        let mark = files.watch(&folder.at("mark"));
        folder.put("mark", "");
        mark.changed().await;
    }

    async fn heard(files: &Files, watched: &Watched) -> bool {
        settled(files).await;
        watched.changed().now_or_never().is_some()
    }

    #[tokio::test(flavor = "local")]
    async fn a_rename_is_a_change_and_a_write_into_the_file_is_none() {
        let (folder, files) = (Folder::new(), Files::default());
        folder.put("a", "1");
        let watched = files.watch(&folder.at("a"));
        assert!(!heard(&files, &watched).await);
        folder.put("a", "2");
        assert!(heard(&files, &watched).await);
        fs::write(folder.at("a"), "3").unwrap();
        folder.put("b", "of no concern");
        assert!(!heard(&files, &watched).await);
        fs::remove_file(folder.at("a")).unwrap();
        assert!(!heard(&files, &watched).await);
        folder.put("a", "4");
        assert!(heard(&files, &watched).await);
    }

    #[tokio::test(flavor = "local")]
    async fn links_that_turn_are_followed_as_in_mounted_configuration_maps() {
        let (folder, files) = (Folder::new(), Files::default());
        for version in ["one", "two", "three"] {
            fs::create_dir(folder.at(version)).unwrap();
            fs::write(folder.at(version).join("a"), version).unwrap();
        }
        symlink("one", folder.at("..data")).unwrap();
        symlink("..data/a", folder.at("a")).unwrap();
        let watched = files.watch(&folder.at("a"));
        for version in ["two", "three", "one"] {
            symlink(version, folder.at("..data_tmp")).unwrap();
            fs::rename(folder.at("..data_tmp"), folder.at("..data")).unwrap();
            assert!(heard(&files, &watched).await, "{version}");
        }
        fs::remove_dir_all(folder.at("two")).unwrap();
        assert!(!heard(&files, &watched).await);
        folder.put("one/a", "renamed over");
        assert!(heard(&files, &watched).await);
    }

    #[tokio::test(flavor = "local")]
    async fn a_file_that_is_made_in_its_place_counts_when_it_is_written() {
        use std::io::Write;
        let (folder, files) = (Folder::new(), Files::default());
        let watched = files.watch(&folder.at("a"));
        let mut file = fs::File::create(folder.at("a")).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!heard(&files, &watched).await);
        file.write_all(b" and half").unwrap();
        drop(file);
        assert!(heard(&files, &watched).await);
    }

    #[tokio::test(flavor = "local")]
    async fn directories_on_the_way_may_be_replaced_and_need_not_be_there_yet() {
        let (folder, files) = (Folder::new(), Files::default());
        let watched = files.watch(&folder.at("x/y/a"));
        fs::create_dir_all(folder.at("new/y")).unwrap();
        fs::write(folder.at("new/y/a"), "1").unwrap();
        fs::rename(folder.at("new"), folder.at("x")).unwrap();
        assert!(heard(&files, &watched).await);
        fs::create_dir_all(folder.at("new/y")).unwrap();
        fs::write(folder.at("new/y/a"), "2").unwrap();
        fs::rename(folder.at("x"), folder.at("old")).unwrap();
        assert!(!heard(&files, &watched).await);
        fs::rename(folder.at("new"), folder.at("x")).unwrap();
        assert!(heard(&files, &watched).await);
    }

    #[tokio::test(flavor = "local")]
    async fn of_a_directory_all_that_moves_into_it_counts() {
        let (folder, files) = (Folder::new(), Files::default());
        fs::create_dir(folder.at("d")).unwrap();
        let watched = files.watch_directory(&folder.at("d"));
        fs::write(folder.at("d/made"), "").unwrap();
        assert!(!heard(&files, &watched).await);
        folder.put("d/moved", "");
        assert!(heard(&files, &watched).await);
    }

    #[tokio::test(flavor = "local")]
    async fn where_the_kernel_refuses_places_are_looked_at() {
        let (folder, files) = (Folder::new(), Files::default());
        files.0.0.borrow_mut().queue = Queue::Refused;
        folder.put("a", "1");
        let watched = files.watch(&folder.at("a"));
        folder.put("a", "2");
        watched.changed().await;
    }

    #[tokio::test(flavor = "local")]
    async fn nothing_is_left_of_a_watch_that_ended() {
        let (folder, files) = (Folder::new(), Files::default());
        let many: Vec<_> = (0..100).map(|i| files.watch(&folder.at(&i.to_string()))).collect();
        assert!(files.0.0.borrow().names.len() >= 100);
        drop(many);
        let state = files.0.0.borrow();
        assert!(state.names.is_empty() && state.uses.is_empty() && state.watches.is_empty());
    }

    #[test]
    fn links_that_lead_in_circles_end() {
        let folder = Folder::new();
        symlink("b", folder.at("a")).unwrap();
        symlink("a", folder.at("b")).unwrap();
        assert_eq!(on_the_way(&folder.at("a"), |_, _| {}), None);
    }
}
