//! Writes `wire::access` lines away from the request path: a bounded queue and one thread. A full queue loses lines,
//! which is counted; it never makes a call wait.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use wire::access::Entry;

use crate::{config, events::Events};

/// Lines between two looks of the writer at its queue.
const QUEUE: usize = 16 << 10;
/// The writer looks this often: waking it for each line would cost more than the line.
const PAUSE: Duration = Duration::from_millis(50);
/// Lines are written in pieces of about this size, and no more memory than that is kept.
const BATCH: usize = 1 << 20;

pub struct AccessLog {
    queue: Option<SyncSender<Box<Entry>>>,
    events: Arc<Events>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AccessLog {
    pub fn open(to: &config::AccessLog, events: Arc<Events>) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match to {
            config::AccessLog::Off => return Ok(Self { queue: None, events, writer: Mutex::default() }),
            config::AccessLog::Stdout => Box::new(io::stdout()),
            config::AccessLog::File(path) => Box::new(append(path)?),
        };
        let (queue, lines) = sync_channel(QUEUE);
        let writer = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || write(&lines, sink))?;
        Ok(Self { queue: Some(queue), events, writer: Mutex::new(Some(writer)) })
    }

    pub fn send(&self, entry: Box<Entry>) {
        if let Some(queue) = &self.queue
            && queue.try_send(entry).is_err()
        {
            self.events.access_line_lost();
        }
    }
}

fn append(path: &std::path::Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Ends when every sender is gone and the queue is empty.
fn write(lines: &Receiver<Box<Entry>>, mut sink: Box<dyn Write + Send>) {
    let mut batch = Vec::with_capacity(64 << 10);
    let mut broken = false;
    loop {
        let state = fill(lines, &mut batch);
        let written = if batch.is_empty() { Ok(()) } else { sink.write_all(&batch).and_then(|()| sink.flush()) };
        if let Err(error) = &written
            && !broken
        {
            tracing::error!(%error, "the access log cannot be written");
        }
        broken = written.is_err();
        batch.clear();
        batch.shrink_to(BATCH);
        match state {
            Queue::Drained => std::thread::sleep(PAUSE),
            Queue::More => {}
            Queue::Closed => return,
        }
    }
}

/// How the queue was left.
#[derive(Debug, PartialEq, Eq)]
enum Queue {
    Drained,
    More,
    Closed,
}

/// Takes lines until there are none or the batch is full.
fn fill(lines: &Receiver<Box<Entry>>, batch: &mut Vec<u8>) -> Queue {
    while batch.len() < BATCH {
        match lines.try_recv() {
            Ok(entry) => line(&entry, batch),
            Err(TryRecvError::Empty) => return Queue::Drained,
            Err(TryRecvError::Disconnected) => return Queue::Closed,
        }
    }
    Queue::More
}

fn line(entry: &Entry, batch: &mut Vec<u8>) {
    serde_json::to_writer(&mut *batch, entry).expect("invariant: an entry has only texts and finite numbers");
    batch.push(b'\n');
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.queue = None;
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(_)) = writer.map(JoinHandle::join) {
            tracing::error!("the writer of the access log panicked");
        }
    }
}
