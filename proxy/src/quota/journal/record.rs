//! The bytes of a journal: a line that names the version, then frames, each a set of accounts and leases as they were at
//! one instant, with its length and a checksum. Pure.
//!
//! A later value replaces an earlier one, so a frame is never a difference. Only the last frame can be cut short by a
//! crash, for each is synced before the next is written; a bad frame with another behind it is damage, not a crash.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::quota::account::{Amounts, Kind, LimitId, Slot, Totals};
use crate::quota::calendar::CalendarPeriod;
use crate::quota::chain::Chain;
use crate::quota::changes::Changes;
use crate::quota::codec::{Reader, pack_numbers, unit_code, unit_of, unreadable};
use crate::quota::lease::{Hold, LeaseId};
use crate::quota::rule::{Level, Limit, Window};
use crate::quota::slots::Account;
use crate::quota::store::StoreError;

const FIRST_LINE: &[u8] = b"penstock quota journal 1\n";
/// Length, its complement, checksum of the payload.
const FRAME_HEAD: usize = 24;
/// A whole journal is written in frames of about this size.
const FRAME_BYTES: usize = 1 << 20;

const ACCOUNT: u8 = b'A';
const LEASE: u8 = b'L';
const GONE: u8 = b'G';

const PERIODS: [CalendarPeriod; 5] =
    [CalendarPeriod::Second, CalendarPeriod::Minute, CalendarPeriod::Hour, CalendarPeriod::Day, CalendarPeriod::Month];

#[derive(Debug, PartialEq)]
pub enum Fault {
    /// The start of its first line.
    Foreign(String),
    Damaged {
        at: usize,
        what: String,
    },
}

/// What a journal says.
#[derive(Debug, Default)]
pub struct State {
    accounts: BTreeMap<Arc<str>, Account>,
    leases: HashMap<LeaseId, (Arc<Chain>, Hold)>,
}

impl State {
    pub fn accounts(&self) -> impl Iterator<Item = (&str, &Account)> {
        self.accounts.iter().map(|(key, account)| (&**key, account))
    }

    pub fn leases(&self) -> impl Iterator<Item = (LeaseId, &Arc<Chain>, &Hold)> {
        self.leases.iter().map(|(id, (chain, hold))| (*id, chain, hold))
    }

    /// The payload that tells another state what this one just learnt.
    pub fn apply(&mut self, changes: Changes) -> Vec<u8> {
        let mut payload = Vec::new();
        for (key, account) in changes.accounts {
            put_account(&mut payload, &key, &account);
            self.accounts.insert(key, account);
        }
        for (id, live) in changes.leases {
            match live {
                Some((chain, hold)) => {
                    self.put_lease(&mut payload, id, &chain, &hold);
                    self.leases.insert(id, (chain, hold));
                }
                None => {
                    payload.push(GONE);
                    payload.extend(id.0.to_le_bytes());
                    self.leases.remove(&id);
                }
            }
        }
        payload
    }

    /// The smallest file that says all this.
    pub fn whole(&self) -> Vec<u8> {
        let (mut file, mut payload) = (FIRST_LINE.to_vec(), Vec::new());
        let mut flush = |payload: &mut Vec<u8>, at_least: usize| {
            if payload.len() >= at_least {
                file.extend(frame(payload));
                payload.clear();
            }
        };
        for (key, account) in &self.accounts {
            put_account(&mut payload, key, account);
            flush(&mut payload, FRAME_BYTES);
        }
        for (id, (chain, hold)) in &self.leases {
            self.put_lease(&mut payload, *id, chain, hold);
            flush(&mut payload, FRAME_BYTES);
        }
        flush(&mut payload, 1);
        file
    }

    /// The state, and how many bytes of a write that was cut short follow it.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), Fault> {
        let Some(frames) = bytes.strip_prefix(FIRST_LINE) else {
            let start = &bytes[..bytes.len().min(FIRST_LINE.len())];
            return Err(Fault::Foreign(String::from_utf8_lossy(start).into_owned()));
        };
        let (mut state, mut rest) = (Self::default(), frames);
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let damaged = |what: &str| Fault::Damaged { at, what: what.to_owned() };
            match unframe(rest) {
                Frame::Whole(payload, behind) => {
                    state.learn(payload).map_err(|error| damaged(&error.to_string()))?;
                    rest = behind;
                }
                Frame::Torn => return Ok((state, rest.len())),
                Frame::Bad => return Err(damaged("its checksum does not match")),
            }
        }
        Ok((state, 0))
    }

    fn learn(&mut self, payload: &[u8]) -> Result<(), StoreError> {
        let mut reader = Reader(payload);
        while !reader.0.is_empty() {
            match reader.byte()? {
                ACCOUNT => {
                    let (key, account) = take_account(&mut reader)?;
                    self.accounts.insert(key.into(), account);
                }
                LEASE => {
                    let (id, chain, hold) = take_lease(&mut reader)?;
                    self.leases.insert(id, (Arc::new(chain), hold));
                }
                GONE => {
                    self.leases.remove(&take_id(&mut reader)?);
                }
                other => return Err(unreadable(&format!("record {other}"))),
            }
        }
        Ok(())
    }

    /// Only what the lease holds on journalled accounts: the others are new after a restart, and owe it nothing.
    fn put_lease(&self, out: &mut Vec<u8>, id: LeaseId, chain: &Chain, hold: &Hold) {
        let kept = |key: &str| self.accounts.contains_key(key);
        let places: Vec<Option<u8>> = chain
            .accounts()
            .iter()
            .scan(0, |next, account| {
                let place = kept(&account.key).then_some(*next);
                *next += u8::from(place.is_some());
                Some(place)
            })
            .collect();
        if places.iter().all(Option::is_none) {
            return;
        }
        out.push(LEASE);
        out.extend(id.0.to_le_bytes());
        out.push(u8::from(hold.dispatched));
        out.extend(pack_numbers(&[hold.deadline]));
        for amounts in [&hold.held, &hold.checkpoint] {
            let Amounts { requests, input, output, nano_usd, concurrency } = *amounts;
            out.extend(pack_numbers(&[requests, input, output, nano_usd, concurrency]));
        }
        out.push(places.iter().flatten().count() as u8);
        for account in chain.accounts().iter().filter(|account| kept(&account.key)) {
            out.push(account.level as u8);
            put_text(out, &account.key);
        }
        let limits = chain.limits().iter().filter(|entry| places[entry.account].is_some());
        out.extend((limits.count() as u16).to_le_bytes());
        let mut epochs = hold.epochs.iter();
        for entry in chain.limits() {
            let epoch = if entry.terms.kind == Kind::Calendar { epochs.next().copied() } else { None };
            if let Some(place) = places[entry.account] {
                out.push(place);
                out.extend(entry.terms.id);
                put_limit(out, &entry.limit);
                out.extend(pack_numbers(&[epoch.unwrap_or(0.0)]));
            }
        }
    }
}

pub fn frame(payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u64;
    let mut frame = Vec::with_capacity(FRAME_HEAD + payload.len());
    frame.extend(length.to_le_bytes());
    frame.extend((!length).to_le_bytes());
    frame.extend(&Sha256::digest(payload)[..8]);
    frame.extend(payload);
    frame
}

enum Frame<'a> {
    Whole(&'a [u8], &'a [u8]),
    Torn,
    Bad,
}

fn unframe(bytes: &[u8]) -> Frame<'_> {
    // A file may have grown before its bytes reached the disk: they read as zeros.
    let ends = |from: usize| if bytes[from..].iter().all(|byte| *byte == 0) { Frame::Torn } else { Frame::Bad };
    let mut reader = Reader(bytes);
    let (Ok(length), Ok(complement), Ok(checksum)) = (reader.take::<8>(), reader.take::<8>(), reader.take::<8>())
    else {
        return Frame::Torn;
    };
    let length = u64::from_le_bytes(length);
    if u64::from_le_bytes(complement) != !length {
        return ends(16);
    }
    let Some((payload, behind)) = usize::try_from(length).ok().and_then(|length| reader.0.split_at_checked(length))
    else {
        return Frame::Torn;
    };
    if Sha256::digest(payload)[..8] != checksum {
        return ends(FRAME_HEAD + payload.len());
    }
    Frame::Whole(payload, behind)
}

fn put_account(out: &mut Vec<u8>, key: &str, account: &Account) {
    out.push(ACCOUNT);
    put_text(out, key);
    let Totals { reserved, settled, refunded, expired } = account.totals;
    out.extend(pack_numbers(&[reserved, settled, refunded, expired]));
    // A slot as good as new is made again when it is asked for.
    let slots = || account.slots.iter().filter(|(_, slot)| *slot != Slot::default());
    out.extend((slots().count() as u32).to_le_bytes());
    for (id, slot) in slots() {
        out.extend(id);
        out.extend(pack_numbers(&[slot.level, slot.at]));
    }
}

fn take_account(reader: &mut Reader<'_>) -> Result<(String, Account), StoreError> {
    let key = take_text(reader)?;
    let mut number = || reader.number();
    let totals = Totals { reserved: number()?, settled: number()?, refunded: number()?, expired: number()? };
    let count = u32::from_le_bytes(reader.take()?);
    let mut slots = Vec::new();
    for _ in 0..count {
        slots.push((reader.id()?, Slot { level: reader.number()?, at: reader.number()? }));
    }
    Ok((key, Account { totals, slots }))
}

fn take_lease(reader: &mut Reader<'_>) -> Result<(LeaseId, Chain, Hold), StoreError> {
    let id = take_id(reader)?;
    let dispatched = reader.byte()? == 1;
    let deadline = reader.number()?;
    let (held, checkpoint) = (take_amounts(reader)?, take_amounts(reader)?);
    let count = reader.byte()?;
    let mut accounts = Vec::new();
    for _ in 0..count {
        let level = usize::from(reader.byte()?);
        let level = Level::ALL.get(level).ok_or_else(|| unreadable(&format!("level {level}")))?;
        accounts.push((*level, take_text(reader)?));
    }
    let count = u16::from_le_bytes(reader.take()?);
    let (mut limits, mut epochs) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let account = usize::from(reader.byte()?);
        if account >= accounts.len() {
            return Err(unreadable("a limit without its account"));
        }
        let (limit_id, limit): (LimitId, Limit) = (reader.id()?, take_limit(reader)?);
        let epoch = reader.number()?;
        if matches!(limit.window, Window::Calendar { .. }) {
            epochs.push(epoch);
        }
        limits.push((account, limit_id, limit));
    }
    Ok((id, Chain::restored(accounts, limits), Hold { dispatched, deadline, held, checkpoint, epochs }))
}

fn take_amounts(reader: &mut Reader<'_>) -> Result<Amounts, StoreError> {
    let mut number = || reader.number();
    Ok(Amounts {
        requests: number()?,
        input: number()?,
        output: number()?,
        nano_usd: number()?,
        concurrency: number()?,
    })
}

/// Unit, amount, kind of window; then what the window needs.
fn put_limit(out: &mut Vec<u8>, limit: &Limit) {
    out.push(unit_code(limit.unit));
    out.extend(limit.amount.to_le_bytes());
    match &limit.window {
        Window::Bucket { period, burst } => {
            out.push(0);
            out.extend(pack_numbers(&[period.as_secs_f64()]));
            out.extend(burst.to_le_bytes());
        }
        Window::Calendar { period, zone } => {
            out.extend([1, *period as u8]);
            put_text(out, zone.iana_name().unwrap_or("UTC"));
        }
        Window::Lifetime => out.push(2),
        Window::Held => out.push(3),
    }
}

fn take_limit(reader: &mut Reader<'_>) -> Result<Limit, StoreError> {
    let unit = unit_of(reader.byte()?)?;
    let amount = u64::from_le_bytes(reader.take()?);
    let window = match reader.byte()? {
        0 => {
            let seconds = reader.number()?;
            let period = Duration::try_from_secs_f64(seconds).map_err(|_| unreadable("a period"))?;
            Window::Bucket { period, burst: u64::from_le_bytes(reader.take()?) }
        }
        1 => {
            let period = PERIODS.get(usize::from(reader.byte()?)).ok_or_else(|| unreadable("a calendar period"))?;
            let name = take_text(reader)?;
            let zone = jiff::tz::TimeZone::get(&name).map_err(|_| unreadable(&format!("time zone {name}")))?;
            Window::Calendar { period: *period, zone }
        }
        2 => Window::Lifetime,
        3 => Window::Held,
        other => return Err(unreadable(&format!("window {other}"))),
    };
    Ok(Limit { unit, amount, window })
}

fn take_id(reader: &mut Reader<'_>) -> Result<LeaseId, StoreError> {
    Ok(LeaseId(u128::from_le_bytes(reader.take()?)))
}

/// Keys and names of time zones: far shorter than 64 KiB.
fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn take_text(reader: &mut Reader<'_>) -> Result<String, StoreError> {
    let length = usize::from(u16::from_le_bytes(reader.take()?));
    let (text, rest) = reader.0.split_at_checked(length).ok_or_else(|| unreadable("a truncated record"))?;
    reader.0 = rest;
    String::from_utf8(text.to_vec()).map_err(|_| unreadable("a text"))
}
