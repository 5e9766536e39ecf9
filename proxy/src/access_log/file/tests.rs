use std::path::Path;

use tempfile::TempDir;
use tokio::runtime::{Builder, LocalOptions};

use super::*;

const SOON: Duration = Duration::from_millis(1);
const NEVER: Duration = Duration::from_secs(3600);

/// Logs in an event loop of their own, on the real clock: files are real.
fn run<T>(logs: impl AsyncFnOnce() -> T) -> T {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(logs())
}

fn writer(interval: Duration, min_size: usize) -> LogWriter {
    LogWriter::new(FlushPolicy { interval, min_size })
}

fn open(writer: &LogWriter, path: &Path) -> Arc<dyn LogFile> {
    writer.open(&LogTarget::Path(path.to_str().unwrap().to_owned())).unwrap()
}

fn append(buffer: &Rc<dyn LogBuffer>, text: &str) {
    buffer.append(&mut |out| out.extend_from_slice(text.as_bytes()));
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// Polls the world for a state that another thread brings about.
async fn until(mut there: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !there() {
        assert!(tokio::time::Instant::now() < deadline, "not within 20 s");
        tokio::time::sleep(SOON).await;
    }
}

#[test]
fn records_of_all_logs_of_a_thread_come_in_order_and_none_is_lost_at_the_end() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.log");
    std::fs::write(&path, "before\n").unwrap();
    let writer = writer(NEVER, 64);
    writer.start().unwrap();
    run(async || {
        let (one, two) = (open(&writer, &path).buffer(), open(&writer, &path).buffer());
        for i in 0..100 {
            append(if i % 2 == 0 { &one } else { &two }, &format!("record {i}\n"));
        }
    });
    writer.stop();
    let expected: String = (0..100).map(|i| format!("record {i}\n")).collect();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("before\n{expected}"));
    let counts = &writer.shared.counts;
    assert_eq!(
        (count(&counts.write_buffered), count(&counts.write_completed), count(&counts.write_failed)),
        (100, 100, 0)
    );
    assert_eq!(writer.shared.queued_bytes.load(Relaxed), 0);
}

#[test]
fn a_buffer_is_written_when_it_is_old_enough() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.log");
    let writer = writer(SOON, 1 << 20);
    writer.start().unwrap();
    run(async || {
        let buffer = open(&writer, &path).buffer();
        for text in ["one\n", "two\n"] {
            append(&buffer, text);
            until(|| std::fs::read_to_string(&path).unwrap().ends_with(text)).await;
        }
    });
    assert_eq!(count(&writer.shared.counts.flushed_by_timer), 2);
    writer.stop();
}

#[test]
fn reopening_follows_a_rotated_file() {
    let dir = TempDir::new().unwrap();
    let (path, rotated) = (dir.path().join("a.log"), dir.path().join("a.log.1"));
    let writer = writer(NEVER, 1);
    writer.start().unwrap();
    run(async || {
        let buffer = open(&writer, &path).buffer();
        append(&buffer, "one\n");
        until(|| std::fs::read_to_string(&path).unwrap() == "one\n").await;
        std::fs::rename(&path, &rotated).unwrap();
        append(&buffer, "two\n");
        until(|| std::fs::read_to_string(&rotated).unwrap() == "one\ntwo\n").await;
        writer.reopen();
        until(|| path.exists()).await;
        append(&buffer, "three\n");
    });
    writer.stop();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
    assert_eq!(std::fs::read_to_string(&rotated).unwrap(), "one\ntwo\n");
}

#[test]
fn a_file_that_cannot_be_reopened_stays_in_use_until_it_can() {
    let dir = TempDir::new().unwrap();
    let (logs, away) = (dir.path().join("logs"), dir.path().join("away"));
    std::fs::create_dir(&logs).unwrap();
    let path = logs.join("a.log");
    let writer = writer(NEVER, 1);
    writer.start().unwrap();
    run(async || {
        let buffer = open(&writer, &path).buffer();
        std::fs::rename(&logs, &away).unwrap();
        writer.reopen();
        until(|| count(&writer.shared.counts.reopen_failed) > 0).await;
        append(&buffer, "one\n");
        until(|| std::fs::read_to_string(away.join("a.log")).unwrap() == "one\n").await;
        std::fs::create_dir(&logs).unwrap();
        append(&buffer, "two\n");
    });
    writer.stop();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
}

/// `/dev/full` takes nothing, as a full disk.
#[test]
fn a_full_disk_costs_records_and_nothing_else() {
    let writer = writer(NEVER, 1);
    writer.start().unwrap();
    run(async || {
        let buffer = open(&writer, Path::new("/dev/full")).buffer();
        for _ in 0..10 {
            append(&buffer, "lost\n");
        }
        until(|| count(&writer.shared.counts.write_failed) == 10).await;
    });
    writer.stop();
    assert_eq!(count(&writer.shared.counts.write_completed), 0);
}

/// Nobody takes from the queue: the disk hangs.
#[test]
fn a_disk_that_hangs_is_never_waited_for_and_memory_stays_bounded() {
    let dir = TempDir::new().unwrap();
    let writer = writer(NEVER, 64 * 1024);
    run(async || {
        let buffer = open(&writer, &dir.path().join("a.log")).buffer();
        let record = format!("{}\n", "x".repeat(64 * 1024));
        for _ in 0..1000 {
            append(&buffer, &record);
        }
        let queued = writer.shared.queued_bytes.load(Relaxed);
        assert!(queued <= QUEUE_BYTES && queued > QUEUE_BYTES / 2, "{queued}");
    });
    let failed = count(&writer.shared.counts.write_failed);
    assert!(failed > 400 && failed < 600, "{failed}");
}

#[test]
fn what_was_cut_off_does_not_run_into_the_next_record() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.log");
    let target = LogTarget::Path(path.to_str().unwrap().to_owned());
    std::fs::write(&path, "half a rec").unwrap();
    let mut state = FileState { file: target.open().unwrap(), torn: true, reopen: false };
    state.write(&target, b"next\n", &Counts::default()).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "half a rec\nnext\n");
}

#[test]
fn an_emptied_buffer_comes_back_to_its_thread() {
    let dir = TempDir::new().unwrap();
    let writer = writer(NEVER, 16);
    writer.start().unwrap();
    run(async || {
        open(&writer, &dir.path().join("a.log"));
        let file = lock(&writer.shared.files).values().find_map(Weak::upgrade);
        assert!(file.is_none(), "a file is closed when nobody logs to it");
        let kept = open(&writer, &dir.path().join("a.log"));
        let file = lock(&writer.shared.files).values().find_map(Weak::upgrade).unwrap();
        let buffer = ThreadBuffer::new(writer.shared.clone(), file);
        buffer.append(&mut |out| out.extend_from_slice(&[b'x'; 100]));
        // A writer that is quick enough gives it back before the next one is needed.
        let mut back = buffer.pending.take().bytes;
        if back.capacity() == 0 {
            until(|| buffer.emptied.try_recv().map(|emptied| back = emptied).is_ok()).await;
        }
        assert!(back.is_empty() && back.capacity() >= 100);
        drop(kept);
    });
    writer.stop();
}

#[test]
fn what_cannot_be_opened_is_said_in_envoys_words() {
    let writer = writer(NEVER, 1);
    for (path, text) in [
        ("/nonexistent/dir/x", "path: unable to open file '/nonexistent/dir/x': No such file or directory"),
        ("/", "path: unable to open file '/': Is a directory"),
    ] {
        let error = writer.open(&LogTarget::Path(path.to_owned())).err().unwrap();
        assert_eq!(error.to_string(), text);
    }
}
