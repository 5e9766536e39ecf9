//! Log files: one thread writes them all, so that a slow or full disk delays and fails nobody.
//!
//! Each thread has one buffer for each file it logs to. It is handed over when it holds
//! `--file-flush-min-size-kb` or is `--file-flush-interval-msec` old, through a bounded queue. When
//! the queue is full, or the disk refuses, what was to be written is dropped and counted; as soon
//! as there is room again, writing goes on by itself. Emptied buffers come back to their thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::rc::{Rc, Weak as LocalWeak};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nuncio_core::access_log::{LogBuffer, LogFile, LogFiles, LogTarget};
use nuncio_core::error::ConfigError;
use nuncio_core::stats::Stats;
use nuncio_core::stats::lists::server::{self, AccessLogFile};
use tokio::sync::Notify;

/// What may wait for the writer: this many buffers and this many bytes.
const QUEUE_CHUNKS: usize = 1024;
const QUEUE_BYTES: usize = 32 * 1024 * 1024;

/// A buffer that grew beyond this by one huge record is freed rather than kept.
const KEEP_CAPACITY: usize = 256 * 1024;

/// How long the end of the process waits for a disk that hangs.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// When to hand over a buffer.
#[derive(Debug, Clone, Copy)]
pub struct FlushPolicy {
    pub interval: Duration,
    pub min_size: usize,
}

impl Default for FlushPolicy {
    /// Envoy's.
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), min_size: 64 * 1024 }
    }
}

/// The owner of all log files, on the main thread.
pub struct LogWriter {
    shared: Arc<Shared>,
    writer: RefCell<Writer>,
}

enum Writer {
    /// Not started: `--mode validate` never does.
    Waiting(Receiver<Message>),
    Running(Receiver<()>),
    Stopped,
}

/// What all threads share; none of it is touched for a single record.
struct Shared {
    policy: FlushPolicy,
    queue: SyncSender<Message>,
    queued_bytes: AtomicUsize,
    counts: Counts,
    /// Main opens, the writer thread reopens.
    files: Mutex<HashMap<LogTarget, Weak<OpenFile>>>,
    reopen: AtomicBool,
    stop: AtomicBool,
}

/// `filesystem.`, as main publishes it.
#[derive(Default)]
struct Counts {
    flushed_by_timer: AtomicU64,
    reopen_failed: AtomicU64,
    write_buffered: AtomicU64,
    write_completed: AtomicU64,
    write_failed: AtomicU64,
}

enum Message {
    Write(Chunk),
    /// Look at the flags.
    Wake,
}

/// Whole records of one file.
struct Chunk {
    file: Arc<OpenFile>,
    bytes: Vec<u8>,
    records: u64,
    /// Where the emptied buffer goes.
    home: SyncSender<Vec<u8>>,
}

struct OpenFile {
    target: LogTarget,
    /// Main's while it opens, then the writer thread's; the lock is never waited for.
    state: Mutex<FileState>,
}

struct FileState {
    file: File,
    /// The last write ended inside a record.
    torn: bool,
    /// Reopening failed; tried again before the next write.
    reopen: bool,
}

// === impl LogWriter ===

impl LogWriter {
    pub fn new(policy: FlushPolicy) -> Self {
        let (queue, messages) = sync_channel(QUEUE_CHUNKS);
        let shared = Shared {
            policy,
            queue,
            queued_bytes: AtomicUsize::new(0),
            counts: Counts::default(),
            files: Mutex::default(),
            reopen: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), writer: RefCell::new(Writer::Waiting(messages)) }
    }

    /// Starts the writer thread, the one thread besides main, the workers and tokio's pool for
    /// files. Called by the server alone.
    pub fn start(&self) -> io::Result<()> {
        let mut writer = self.writer.borrow_mut();
        let messages = match std::mem::replace(&mut *writer, Writer::Stopped) {
            Writer::Waiting(messages) => messages,
            other => {
                *writer = other;
                return Ok(());
            }
        };
        let (done, ended) = sync_channel(1);
        let shared = self.shared.clone();
        std::thread::Builder::new().name("access_log".to_owned()).spawn(move || {
            shared.run(&messages);
            let _ = done.try_send(());
        })?;
        *writer = Writer::Running(ended);
        Ok(())
    }

    /// Closes and opens every file, for log rotation: `/reopen_logs`, SIGUSR1.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Relaxed);
        self.shared.wake();
    }

    /// Writes what the threads have handed over and ends the writer. They hand over the rest when
    /// they drop their logs, so this comes after them.
    pub fn stop(&self) {
        let Writer::Running(ended) = self.writer.replace(Writer::Stopped) else { return };
        self.shared.stop.store(true, Relaxed);
        self.shared.wake();
        if ended.recv_timeout(STOP_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(target: "file", "a log file does not take what was to be written to it");
        }
    }

    /// Copies the counts to the stats of main.
    pub fn publish(&self, stats: &Stats<AccessLogFile>) {
        let counts = &self.shared.counts;
        for (counter, value) in [
            (server::FLUSHED_BY_TIMER, &counts.flushed_by_timer),
            (server::REOPEN_FAILED, &counts.reopen_failed),
            (server::WRITE_BUFFERED, &counts.write_buffered),
            (server::WRITE_COMPLETED, &counts.write_completed),
            (server::WRITE_FAILED, &counts.write_failed),
        ] {
            stats.add(counter, value.swap(0, Relaxed));
        }
        stats.set(server::WRITE_TOTAL_BUFFERED, self.shared.queued_bytes.load(Relaxed) as u64);
    }
}

impl LogFiles for LogWriter {
    fn open(&self, target: &LogTarget) -> Result<Arc<dyn LogFile>, ConfigError> {
        let mut files = lock(&self.shared.files);
        if let Some(file) = files.get(target).and_then(Weak::upgrade) {
            return Ok(Arc::new(SharedFile { shared: self.shared.clone(), file }));
        }
        let file = target.open().map_err(|e| {
            // The system's words, without the number that Rust adds.
            let text = e.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            ConfigError::new("path", format!("unable to open file '{}': {text}", target.path()))
        })?;
        let state = FileState { file, torn: false, reopen: false };
        let file = Arc::new(OpenFile { target: target.clone(), state: Mutex::new(state) });
        files.retain(|_, file| file.strong_count() > 0);
        files.insert(target.clone(), Arc::downgrade(&file));
        Ok(Arc::new(SharedFile { shared: self.shared.clone(), file }))
    }
}

trait Open {
    fn path(&self) -> &str;
    fn open(&self) -> io::Result<File>;
}

impl Open for LogTarget {
    fn path(&self) -> &str {
        match self {
            Self::Path(path) => path,
            Self::Stdout => "/dev/stdout",
            Self::Stderr => "/dev/stderr",
        }
    }

    fn open(&self) -> io::Result<File> {
        match self {
            Self::Path(path) => OpenOptions::new().create(true).append(true).open(path),
            // Not by their paths, which cannot be opened if they are sockets.
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Self::Stderr => io::stderr().as_fd().try_clone_to_owned().map(File::from),
        }
    }
}

/// A lock that one thread holds at a time by design; a panic under it left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Shared: the writer thread ===

impl Shared {
    fn run(&self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            if self.reopen.swap(false, Relaxed) {
                self.reopen_files();
            }
            self.take(message);
            if self.stop.load(Relaxed) {
                while let Ok(message) = messages.try_recv() {
                    self.take(message);
                }
                return;
            }
        }
    }

    fn take(&self, message: Message) {
        let Message::Write(mut chunk) = message else { return };
        match lock(&chunk.file.state).write(&chunk.file.target, &chunk.bytes, &self.counts) {
            Ok(()) => self.counts.write_completed.fetch_add(chunk.records, Relaxed),
            Err(e) => {
                tracing::debug!(target: "file", "cannot write to {}: {e}", chunk.file.target.path());
                self.counts.write_failed.fetch_add(chunk.records, Relaxed)
            }
        };
        self.queued_bytes.fetch_sub(chunk.bytes.len(), Relaxed);
        if chunk.bytes.capacity() <= KEEP_CAPACITY {
            chunk.bytes.clear();
            let _ = chunk.home.try_send(chunk.bytes);
        }
    }

    fn reopen_files(&self) {
        let files: Vec<_> = lock(&self.files).values().filter_map(Weak::upgrade).collect();
        for file in files {
            let mut state = lock(&file.state);
            state.reopen = true;
            state.reopen(&file.target, &self.counts);
        }
    }

    /// The writer looks at the flags; if the queue is full it does so anyway.
    fn wake(&self) {
        let _ = self.queue.try_send(Message::Wake);
    }

    /// From any thread: gives the buffer to the writer, or back if there is no room.
    fn hand_over(&self, chunk: Chunk) -> Result<(), Vec<u8>> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        let (len, records) = (chunk.bytes.len(), chunk.records);
        self.counts.write_buffered.fetch_add(records, Relaxed);
        let room = self.queued_bytes.fetch_add(len, Relaxed) + len <= QUEUE_BYTES;
        let refused = if room { self.queue.try_send(Message::Write(chunk)) } else { Err(Full(Message::Write(chunk))) };
        match refused {
            Err(Full(Message::Write(chunk)) | Disconnected(Message::Write(chunk))) => {
                self.queued_bytes.fetch_sub(len, Relaxed);
                self.counts.write_failed.fetch_add(records, Relaxed);
                Err(chunk.bytes)
            }
            _ => Ok(()),
        }
    }
}

impl FileState {
    fn write(&mut self, target: &LogTarget, bytes: &[u8], counts: &Counts) -> io::Result<()> {
        if self.reopen {
            self.reopen(target, counts);
        }
        // So that what a full disk cut off does not run into the next record.
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.torn = rest.len() < bytes.len() && bytes[bytes.len() - rest.len() - 1] != b'\n';
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn reopen(&mut self, target: &LogTarget, counts: &Counts) {
        if let LogTarget::Path(path) = target {
            match target.open() {
                Ok(file) => (self.file, self.torn) = (file, false),
                Err(e) => {
                    // The old file goes on taking records until the new one can be had.
                    tracing::warn!(target: "file", "cannot reopen {path}: {e}");
                    counts.reopen_failed.fetch_add(1, Relaxed);
                    return;
                }
            }
        }
        self.reopen = false;
    }
}

// === the logging threads ===

struct SharedFile {
    shared: Arc<Shared>,
    file: Arc<OpenFile>,
}

thread_local! {
    /// The buffers of this thread, so that all logs to one file share one and keep their order.
    static BUFFERS: RefCell<Vec<LocalWeak<ThreadBuffer>>> = const { RefCell::new(Vec::new()) };
}

impl LogFile for SharedFile {
    fn buffer(&self) -> Rc<dyn LogBuffer> {
        BUFFERS.with_borrow_mut(|buffers| {
            buffers.retain(|buffer| buffer.strong_count() > 0);
            let same = |buffer: Rc<ThreadBuffer>| Arc::ptr_eq(&buffer.file, &self.file).then_some(buffer);
            if let Some(buffer) = buffers.iter().filter_map(LocalWeak::upgrade).find_map(same) {
                return buffer as Rc<dyn LogBuffer>;
            }
            let buffer = Rc::new(ThreadBuffer::new(self.shared.clone(), self.file.clone()));
            buffers.push(Rc::downgrade(&buffer));
            let (weak, filled) = (Rc::downgrade(&buffer), buffer.filled.clone());
            tokio::task::spawn_local(flush_when_old(weak, filled, self.shared.policy.interval));
            buffer
        })
    }
}

/// Sleeps while the buffer is empty.
async fn flush_when_old(buffer: LocalWeak<ThreadBuffer>, filled: Rc<Notify>, interval: Duration) {
    loop {
        filled.notified().await;
        if buffer.strong_count() > 0 {
            tokio::time::sleep(interval).await;
        }
        let Some(buffer) = buffer.upgrade() else { return };
        if buffer.hand_over() {
            buffer.shared.counts.flushed_by_timer.fetch_add(1, Relaxed);
        }
    }
}

/// One thread's records for one file.
struct ThreadBuffer {
    shared: Arc<Shared>,
    file: Arc<OpenFile>,
    pending: RefCell<Pending>,
    /// Told at the first record in an empty buffer.
    filled: Rc<Notify>,
    home: SyncSender<Vec<u8>>,
    emptied: Receiver<Vec<u8>>,
}

#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    records: u64,
}

impl ThreadBuffer {
    fn new(shared: Arc<Shared>, file: Arc<OpenFile>) -> Self {
        let (home, emptied) = sync_channel(4);
        Self { shared, file, pending: RefCell::default(), filled: Rc::default(), home, emptied }
    }

    /// Says whether there was something.
    fn hand_over(&self) -> bool {
        let Pending { bytes, records } = self.pending.take();
        if bytes.is_empty() {
            self.pending.borrow_mut().bytes = bytes;
            return false;
        }
        let chunk = Chunk { file: self.file.clone(), bytes, records, home: self.home.clone() };
        let next = match self.shared.hand_over(chunk) {
            Ok(()) => self.emptied.try_recv().unwrap_or_default(),
            Err(mut dropped) => {
                dropped.clear();
                dropped
            }
        };
        self.pending.borrow_mut().bytes = next;
        true
    }
}

impl LogBuffer for ThreadBuffer {
    fn append(&self, write: &mut dyn FnMut(&mut Vec<u8>)) {
        let mut pending = self.pending.borrow_mut();
        let before = pending.bytes.len();
        write(&mut pending.bytes);
        if pending.bytes.len() == before {
            return;
        }
        pending.records += 1;
        let full = pending.bytes.len() >= self.shared.policy.min_size;
        drop(pending);
        if full {
            self.hand_over();
        } else if before == 0 {
            self.filled.notify_one();
        }
    }
}

impl Drop for ThreadBuffer {
    fn drop(&mut self) {
        self.hand_over();
        // Its task sees that the buffer is gone.
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests;
