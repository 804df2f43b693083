//! The lease of a long stream: renewed for many times its length, and always good for a crash of the gateway.

use std::time::Duration;

use proxy::quota::Store;
use tokio::{io::AsyncReadExt, net::TcpStream};

use super::{
    rig::{Kind, Rig, Settings, chat},
    upstream::{DONE, STOP, Step, Upstream, chunk, stream_end, stream_head, text_event},
};

const TTL: Duration = Duration::from_millis(900);
const EVENTS: usize = 60;
const WORDS: usize = 12;

#[tokio::test]
async fn in_the_journal() {
    a_long_stream_keeps_its_lease_and_a_crash_would_charge_what_it_has_delivered(Kind::Journal).await;
}

#[tokio::test]
async fn on_redis() {
    a_long_stream_keeps_its_lease_and_a_crash_would_charge_what_it_has_delivered(Kind::Redis).await;
}

/// Many tokens per event, as upstreams send that batch them: an event is no measure of a token.
async fn a_long_stream_keeps_its_lease_and_a_crash_would_charge_what_it_has_delivered(kind: Kind) {
    let upstream = Upstream::start(|_| {
        let mut steps = vec![stream_head()];
        for _ in 0..EVENTS {
            steps.extend([chunk(text_event(&" word".repeat(WORDS))), Step::Wait(Duration::from_millis(100))]);
        }
        steps.extend([chunk(STOP), chunk(DONE), stream_end()]);
        steps
    })
    .await;
    let rig = Rig::with(&upstream, Settings { store: kind, lease_ttl: Some(TTL), ..Settings::default() }).await;
    let mut socket = rig.open(&chat(",\"stream\":true,\"max_tokens\":9000")).await;
    let mut bytes = Vec::new();
    for _ in 0..3 {
        let early = words(&bytes);
        read_for(&mut socket, &mut bytes, TTL * 2).await;
        let checkpoint = checkpoint(&rig).await;
        assert!(checkpoint >= early, "{checkpoint} of {early} that the client had two lease times ago");
        read_for(&mut socket, &mut bytes, Duration::from_millis(50)).await;
        assert!(checkpoint <= words(&bytes) + 2 * WORDS, "{checkpoint} of {}", words(&bytes));
    }
    while socket.read_buf(&mut bytes).await.expect("read") > 0 {}
    assert_eq!(words(&bytes), EVENTS * WORDS);
    let line = rig.lines(1).await.remove(0);
    assert_eq!(rig.balance().await.0, line.demand.expect("admitted").prompt + (EVENTS * WORDS) as u64);
    let stats = rig.quota.stats();
    assert_eq!((stats.late_settles, stats.lost_leases, stats.reclaimed_leases, stats.reasserts), (0, 0, 0, 0));
}

async fn read_for(socket: &mut TcpStream, bytes: &mut Vec<u8>, time: Duration) {
    let end = tokio::time::Instant::now() + time;
    while let Ok(read) = tokio::time::timeout_at(end, socket.read_buf(bytes)).await {
        assert!(read.expect("read") > 0, "the stream ended: {}", String::from_utf8_lossy(bytes));
    }
}

fn words(bytes: &[u8]) -> usize {
    String::from_utf8_lossy(bytes).matches(" word").count()
}

/// Output tokens that the store would charge for the only lease if its gateway died now.
async fn checkpoint(rig: &Rig) -> usize {
    match rig.quota.store() {
        Store::Memory(store) => {
            let ledger = store.ledger();
            let (_, _, hold) = ledger.live().next().expect("a live lease");
            assert!(hold.dispatched);
            hold.checkpoint.output as usize
        }
        Store::Redis(store) => {
            let leases = store.dump("ps1:{acme}:L:*").await.expect("Redis is there");
            let [(_, record)] = &leases[..] else { panic!("one lease: {leases:?}") };
            // State, dispatched, count of epochs, then deadline, three held, and the checkpoint: requests, input, output.
            assert_eq!((record[0], record[1]), (b'L', 1));
            let at = 3 + 8 * 6;
            f64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes")) as usize
        }
    }
}
