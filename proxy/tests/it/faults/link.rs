//! The way from one gateway to Redis, and all that can go wrong on it: late, cut in the middle, silent, refused, or a lie
//! about what was done. It knows where commands and replies end; nothing is ever duplicated.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::resp;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    None,
    /// Each command reaches the server so late; a caller may have given up by then.
    LateCommands(Duration),
    LateReplies(Duration),
    /// Bytes are taken and go nowhere. What was taken goes on when the trouble is over.
    Frozen,
    /// Everything is executed, and nothing is ever answered on the connections that saw it.
    Mute,
    /// Nothing is executed, and everything is answered by this error.
    Refused(&'static str),
    /// Everything is executed, and everything is answered by this error.
    Denied(&'static str),
    /// Connections are cut, and new ones find nobody.
    Down,
}

/// One command or reply of which so many bytes arrive before its connection ends.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Command(usize),
    Reply(usize),
}

/// What the next reply on a connection is to be.
#[derive(Clone, Copy, Debug)]
enum Due {
    Whole,
    Begun(usize),
    Instead(&'static str),
    /// Without the server.
    Made(&'static str),
    Never,
}

#[derive(Clone, Debug)]
struct State {
    trouble: Trouble,
    target: PathBuf,
    /// Connections of an earlier era are cut.
    era: u64,
    severed: bool,
}

#[derive(Clone)]
pub struct Link {
    folder: Arc<tempfile::TempDir>,
    state: watch::Sender<State>,
    cuts: Arc<Mutex<VecDeque<Cut>>>,
}

impl Link {
    pub fn to(target: PathBuf) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let listener = UnixListener::bind(folder.path().join("link.sock")).unwrap();
        let (state, states) = watch::channel(State { trouble: Trouble::None, target, era: 0, severed: false });
        let cuts = Arc::<Mutex<VecDeque<Cut>>>::default();
        tokio::spawn(accept(listener, states, cuts.clone()));
        Self { folder, state, cuts }
    }

    pub fn url(&self, database: usize) -> String {
        format!("unix://{}?db={database}", self.folder.path().join("link.sock").display())
    }

    pub fn trouble(&self, trouble: Trouble) {
        self.state.send_modify(|state| {
            state.trouble = trouble;
            state.era += u64::from(trouble == Trouble::Down);
        });
    }

    /// The next command to pass, of any connection.
    pub fn cut(&self, cut: Cut) {
        self.cuts.lock().unwrap().push_back(cut);
    }

    /// New connections find another server, and old ones keep theirs.
    pub fn lead_to(&self, target: PathBuf) {
        self.state.send_modify(|state| state.target = target);
    }

    /// No byte passes any more: what SIGKILL of its gateway looks like from the server.
    pub fn sever(&self) {
        self.state.send_modify(|state| (state.severed, state.era) = (true, state.era + 1));
    }
}

async fn accept(listener: UnixListener, mut states: watch::Receiver<State>, cuts: Arc<Mutex<VecDeque<Cut>>>) {
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                Err(_) => return,
            },
            _ = states.wait_for(|state| state.severed) => return,
        };
        let (target, era) = {
            let state = states.borrow();
            if state.trouble == Trouble::Down {
                continue;
            }
            (state.target.clone(), state.era)
        };
        let Ok(server) = UnixStream::connect(&target).await else { continue };
        let (mut over, states, cuts) = (states.clone(), states.clone(), cuts.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = carry(client, server, states, cuts) => {}
                // The link is gone, or this era of it.
                _ = over.wait_for(|state| state.era != era) => {}
            }
        });
    }
}

/// Until either side ends, or a cut ends both.
async fn carry(
    client: UnixStream,
    server: UnixStream,
    states: watch::Receiver<State>,
    cuts: Arc<Mutex<VecDeque<Cut>>>,
) {
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (due, dues) = mpsc::channel(10_000);
    tokio::select! {
        () = commands(from_client, to_server, states.clone(), cuts, due) => {}
        () = replies(from_server, to_client, states, dues) => {}
    }
}

async fn commands(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    mut states: watch::Receiver<State>,
    cuts: Arc<Mutex<VecDeque<Cut>>>,
    due: mpsc::Sender<Due>,
) {
    let mut bytes = Vec::new();
    while let Ok(1..) = client.read_buf(&mut bytes).await {
        let arrived = Instant::now();
        while let Some(length) = resp::frame(&bytes) {
            let command: Vec<u8> = bytes.drain(..length).collect();
            let trouble = match states.wait_for(|state| state.trouble != Trouble::Frozen).await {
                Ok(state) => state.trouble,
                Err(_gone) => return,
            };
            let cut = cuts.lock().unwrap().pop_front();
            let (forward, reply) = match (trouble, cut) {
                (_, Some(Cut::Command(bytes))) => (bytes.min(length - 1), None),
                (_, Some(Cut::Reply(bytes))) => (length, Some(Due::Begun(bytes))),
                (Trouble::Refused(_) | Trouble::Denied(_), _) if resp::is_set_up(&command) => {
                    (length, Some(Due::Whole))
                }
                (Trouble::Refused(error), _) => (0, Some(Due::Made(error))),
                (Trouble::Denied(error), _) => (length, Some(Due::Instead(error))),
                (Trouble::Mute, _) => (length, Some(Due::Never)),
                _ => (length, Some(Due::Whole)),
            };
            if let Trouble::LateCommands(late) = trouble {
                sleep_until(arrived + late).await;
            }
            // Before the command: its reply may be here at once.
            if let Some(reply) = reply
                && due.send(reply).await.is_err()
            {
                return;
            }
            if server.write_all(&command[..forward]).await.is_err() || reply.is_none() {
                return;
            }
        }
    }
}

async fn replies(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    states: watch::Receiver<State>,
    mut dues: mpsc::Receiver<Due>,
) {
    let mut bytes = Vec::new();
    while let Some(due) = dues.recv().await {
        let reply = match due {
            Due::Made(error) => format!("-{error}\r\n").into_bytes(),
            _ => match next(&mut server, &mut bytes).await {
                Some(reply) => reply,
                None => return,
            },
        };
        let trouble = states.borrow().trouble;
        if let Trouble::LateReplies(late) = trouble {
            tokio::time::sleep(late).await;
        }
        let (reply, more) = match due {
            Due::Whole | Due::Made(_) => (reply, true),
            Due::Instead(error) => (format!("-{error}\r\n").into_bytes(), true),
            Due::Begun(length) => (reply[..length.min(reply.len() - 1)].to_vec(), false),
            Due::Never => return std::future::pending().await,
        };
        if client.write_all(&reply).await.is_err() || !more {
            return;
        }
    }
}

async fn next(server: &mut OwnedReadHalf, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = resp::frame(bytes) {
            return Some(bytes.drain(..length).collect());
        }
        if server.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}
