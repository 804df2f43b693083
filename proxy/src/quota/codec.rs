//! The packed, versioned strings that live in Redis, shared with `lua/common.lua`: little-endian, doubles for every
//! number, byte 1 of an account is its version. The scripts write them; here they are read (audit, reclaim) and the
//! static part, a chain's terms, is written.

use sha2::{Digest, Sha256};

use super::account::{Amounts, Kind, LimitId, Slot, Terms, Totals};
use super::calendar::Windows;
use super::chain::Chain;
use super::lease::{Hold, LeaseId};
use super::rule::Unit;
use super::store::{Answer, Spot, Status, StoreError, Turn};
use super::tier::Share;
use super::turns::Ahead;

const ACCOUNT_VERSION: u8 = 1;
/// The status of an operation whose accounts no script can work with; a text follows. It never leaves this module.
const BROKEN: u8 = 8;

/// An account as it lies in the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedAccount {
    pub totals: Totals,
    pub slots: Vec<(LimitId, Slot)>,
}

/// A lease as it lies in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedLease {
    pub expired: bool,
    pub hold: Hold,
    pub mark: [u8; 8],
    /// What each limit is, with the index of its account.
    pub limits: Vec<(usize, LimitId, Unit)>,
    /// Account keys, in chain order.
    pub keys: Vec<String>,
}

/// Counts of accounts, calendars and limits, a mark that names them, the count of limits per account, all limit ids;
/// then in doubles `keep` per account and kind, unit, ceiling (of a calendar limit: what a window forgives) and rate per
/// limit. The account keys follow, which the scripts never read.
pub fn pack_terms(chain: &Chain) -> Vec<u8> {
    let keys: Vec<&str> = chain.accounts.iter().map(|account| account.key.as_str()).collect();
    let keys = keys.join("\n");
    let ids: Vec<u8> = chain.limits.iter().flat_map(|entry| entry.terms.id).collect();
    let calendars = chain.limits.iter().filter(|entry| entry.terms.kind == Kind::Calendar).count();
    let mut out = Vec::with_capacity(16 + chain.accounts.len() * 9 + chain.limits.len() * 40 + keys.len());
    out.extend([chain.accounts.len() as u8, calendars as u8]);
    out.extend((chain.limits.len() as u16).to_le_bytes());
    let mark = Sha256::new().chain_update(&keys).chain_update([0]).chain_update(&ids).finalize();
    out.extend(&mark[..8]);
    for account in 0..chain.accounts.len() {
        out.push(chain.limits.iter().filter(|entry| entry.account == account).count() as u8);
    }
    out.extend(&ids);
    out.extend(chain.accounts.iter().flat_map(|account| account.keep_us.to_le_bytes()));
    for entry in &chain.limits {
        let terms = &entry.terms;
        let unit = f64::from(unit_code(terms.unit));
        let ceiling = if terms.kind == Kind::Calendar { terms.forgiven() } else { terms.ceiling() };
        out.extend(pack_numbers(&[kind_code(terms.kind), unit, ceiling, terms.rate]));
    }
    out.extend(keys.as_bytes());
    out
}

/// The mark inside packed terms: two chains with the same mark have the same accounts and limits.
pub fn mark(terms: &[u8]) -> &[u8] {
    terms.get(4..12).unwrap_or_default()
}

/// Travels with each call and is kept nowhere, unlike terms: those of a calendar limit say what a window forgives, which is
/// the same for all tiers.
pub fn pack_window(window: &Windows, terms: &Terms) -> Vec<u8> {
    let [previous, current, next, last] = window.0;
    pack_numbers(&[previous, current, next, last, terms.ceiling()])
}

pub fn pack_numbers(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Status, due, clock, levels; a `Moved` answer carries a lease record instead of levels.
pub fn read_answer(bytes: &[u8]) -> Result<Answer, StoreError> {
    let mut reader = Reader(bytes);
    let status = match reader.byte()? {
        0 => Status::Done,
        1 => Status::Full,
        2 => Status::Absent,
        3 => Status::Buried,
        4 => Status::Late,
        5 => Status::NotDue,
        6 => Status::Stale,
        7 => Status::Moved,
        9 => Status::Queued,
        10 => Status::Crowded,
        other => return Err(unreadable(&format!("status {other}"))),
    };
    let due = reader.byte()? == 1;
    let now_us = reader.number()?;
    let levels = if status == Status::Moved { Vec::new() } else { reader.numbers(reader.0.len() / 8)? };
    Ok(Answer { status, now_us, due, levels })
}

/// What `turn.lua` is asked; see its head.
pub fn pack_turn(chain: &Chain, id: LeaseId, turn: &Turn) -> Vec<u8> {
    let mut out = id.0.to_be_bytes().to_vec();
    out.extend(turn.gateway.to_be_bytes());
    out.extend(pack_numbers(&[turn.since, turn.wait_us]));
    out.extend([chain.rank, chain.shares.len().max(1) as u8, chain.queues.len() as u8]);
    for queue in &chain.queues {
        out.push(queue.account as u8);
        out.extend(queue.tenant);
        out.extend((queue.depth as u32).to_le_bytes());
    }
    // Without tiers there is one, which waits for no other.
    let shares = if chain.shares.is_empty() { &[Share::NONE] } else { &*chain.shares };
    out.extend(shares.iter().flat_map(|share| share.of(1.0).to_le_bytes()));
    out.extend(chain.limits.iter().map(|entry| u8::from(entry.wait.is_some())));
    out
}

/// Length of what follows an answer of `turn.lua`.
const SPOT: usize = 41;

/// The answer as such, and where the call stands.
pub fn read_spot(reply: &[u8]) -> Result<(&[u8], Option<Spot>), StoreError> {
    let at = reply.len().checked_sub(SPOT).ok_or_else(|| unreadable("a turn cut short"))?;
    let (answer, spot) = reply.split_at(at);
    let mut reader = Reader(spot);
    let queue = reader.byte()?;
    let (since, calls, tokens) = (reader.number()?, reader.number()?, reader.number()?);
    let next = LeaseId(u128::from_be_bytes(reader.take::<16>()?));
    let next = Some(next).filter(|next| next.0 != 0);
    let spot = Spot { queue: usize::from(queue), since, ahead: Ahead { calls, tokens }, next };
    Ok((answer, Some(spot).filter(|_| queue != u8::MAX)))
}

/// One reply of a batch: the error of an operation that the others did not meet, or the reply as it is.
pub fn fault_in(reply: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    match reply.first() {
        Some(&BROKEN) => Err(StoreError::Refused(String::from_utf8_lossy(moved_record(&reply)).into_owned())),
        _ => Ok(reply),
    }
}

/// The lease record behind a `Moved` answer.
pub fn moved_record(bytes: &[u8]) -> &[u8] {
    bytes.get(10..).unwrap_or_default()
}

pub fn read_account(bytes: &[u8]) -> Result<PackedAccount, StoreError> {
    let mut reader = Reader(bytes);
    match reader.byte()? {
        ACCOUNT_VERSION => {}
        other => return Err(unreadable(&format!("account version {other}"))),
    }
    let count = usize::from(reader.byte()?);
    let ids: Vec<LimitId> = (0..count).map(|_| reader.id()).collect::<Result<_, _>>()?;
    let _keep_until = reader.number()?;
    let totals = Totals {
        reserved: reader.number()?,
        settled: reader.number()?,
        refunded: reader.number()?,
        expired: reader.number()?,
    };
    let mut slots = Vec::with_capacity(count);
    for id in ids {
        slots.push((id, Slot { level: reader.number()?, at: reader.number()? }));
    }
    Ok(PackedAccount { totals, slots })
}

/// The record of an account with `leaked` tokens given back (or, if negative, taken as reserved) and these levels.
pub fn balanced(record: &[u8], leaked: f64, levels: &[(LimitId, f64)]) -> Result<Vec<u8>, StoreError> {
    let account = read_account(record)?;
    let mut record = record.to_vec();
    // Behind version, count and ids: when it expires, reserved, settled, refunded, expired, then level and time per slot.
    let numbers = 2 + 8 * account.slots.len();
    let mut put = |index: usize, value: f64| {
        record[numbers + 8 * index..][..8].copy_from_slice(&value.to_le_bytes());
    };
    put(1, account.totals.reserved + (-leaked).max(0.0));
    put(3, account.totals.refunded + leaked.max(0.0));
    for (at, (id, _)) in account.slots.iter().enumerate() {
        if let Some((_, level)) = levels.iter().find(|(known, _)| known == id) {
            put(5 + 2 * at, *level);
        }
    }
    Ok(record)
}

/// `None` for the tombstone of a cancelled reserve, which holds nothing.
pub fn read_lease(bytes: &[u8]) -> Result<Option<PackedLease>, StoreError> {
    let mut reader = Reader(bytes);
    let expired = match reader.byte()? {
        b'L' => false,
        b'E' => true,
        b'X' => return Ok(None),
        other => return Err(unreadable(&format!("lease state {other}"))),
    };
    let dispatched = reader.byte()? == 1;
    let calendars = usize::from(reader.byte()?);
    let deadline = reader.number()?;
    let (input, output, nano_usd) = (reader.number()?, reader.number()?, reader.number()?);
    let held = Amounts { requests: 1.0, input, output, nano_usd, concurrency: 1.0 };
    let (requests, input, output, nano_usd) = (reader.number()?, reader.number()?, reader.number()?, reader.number()?);
    let checkpoint = Amounts { requests, input, output, nano_usd, concurrency: 0.0 };
    let epochs = reader.numbers(calendars)?;
    let hold = Hold { dispatched, deadline, held, checkpoint, epochs };
    let (mark, limits, keys) = read_terms(&mut reader)?;
    Ok(Some(PackedLease { expired, hold, mark, limits, keys }))
}

type ReadTerms = ([u8; 8], Vec<(usize, LimitId, Unit)>, Vec<String>);

fn read_terms(reader: &mut Reader<'_>) -> Result<ReadTerms, StoreError> {
    let accounts = usize::from(reader.byte()?);
    let _calendars = reader.byte()?;
    let count = usize::from(u16::from_le_bytes([reader.byte()?, reader.byte()?]));
    let mark = reader.id()?;
    let mut owners = Vec::with_capacity(count);
    for account in 0..accounts {
        owners.extend(std::iter::repeat_n(account, usize::from(reader.byte()?)));
    }
    if owners.len() != count {
        return Err(unreadable("as many limits as the accounts have"));
    }
    let ids: Vec<LimitId> = (0..count).map(|_| reader.id()).collect::<Result<_, _>>()?;
    reader.numbers(accounts)?;
    let mut limits = Vec::with_capacity(count);
    for (account, id) in owners.into_iter().zip(ids) {
        let numbers = reader.numbers(4)?;
        limits.push((account, id, unit_of(numbers[1] as u8)?));
    }
    let keys = std::str::from_utf8(reader.0).map_err(|_| unreadable("account keys"))?;
    let keys: Vec<String> = keys.lines().map(str::to_owned).collect();
    if keys.len() != accounts {
        return Err(unreadable("as many account keys as accounts"));
    }
    Ok((mark, limits, keys))
}

fn kind_code(kind: Kind) -> f64 {
    match kind {
        Kind::Bucket => 0.0,
        Kind::Calendar => 1.0,
        Kind::Lifetime => 2.0,
        Kind::Held => 3.0,
    }
}

const UNITS: [Unit; 6] =
    [Unit::Requests, Unit::Tokens, Unit::InputTokens, Unit::OutputTokens, Unit::NanoUsd, Unit::Concurrency];

pub(super) fn unit_code(unit: Unit) -> u8 {
    unit as u8
}

pub(super) fn unit_of(code: u8) -> Result<Unit, StoreError> {
    UNITS.get(usize::from(code)).copied().ok_or_else(|| unreadable(&format!("unit {code}")))
}

pub(super) fn unreadable(what: &str) -> StoreError {
    StoreError::Unreadable(what.to_owned())
}

/// What is left to read.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or_else(|| unreadable("a truncated record"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn byte(&mut self) -> Result<u8, StoreError> {
        Ok(self.take::<1>()?[0])
    }

    pub fn id(&mut self) -> Result<LimitId, StoreError> {
        self.take::<8>()
    }

    pub fn number(&mut self) -> Result<f64, StoreError> {
        Ok(f64::from_le_bytes(self.take::<8>()?))
    }

    pub fn numbers(&mut self, count: usize) -> Result<Vec<f64>, StoreError> {
        (0..count).map(|_| self.number()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_keep_their_codes() {
        for (code, unit) in UNITS.iter().enumerate() {
            assert_eq!(usize::from(unit_code(*unit)), code);
        }
    }

    #[test]
    fn no_prefix_of_a_record_is_read_as_a_whole() {
        let mut lease = vec![b'L', 1, 0];
        lease.extend(pack_numbers(&[1.0; 8]));
        lease.extend([1, 0, 1, 0]);
        lease.extend([7; 8]);
        lease.push(1);
        lease.extend([9; 8]);
        lease.extend(pack_numbers(&[0.0, 2.0, 5.0, 100.0, 0.0]));
        lease.extend(b"ps1:{o}:a:o00");
        let read = read_lease(&lease).unwrap().unwrap();
        assert_eq!(read.keys, ["ps1:{o}:a:o00"]);
        assert_eq!(read.limits, [(0, [9; 8], Unit::Concurrency)]);
        for cut in 0..lease.len() - 13 {
            assert!(read_lease(&lease[..cut]).is_err(), "{cut}");
        }
        let account = [vec![1, 1], vec![9; 8], pack_numbers(&[0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0])].concat();
        assert_eq!(read_account(&account).unwrap().slots, [([9; 8], Slot { level: 5.0, at: 6.0 })]);
        let mended = read_account(&balanced(&account, 7.0, &[([9; 8], 2.0), ([1; 8], 3.0)]).unwrap()).unwrap();
        assert_eq!(mended.totals, Totals { refunded: 7.0, ..Totals::default() });
        assert_eq!(mended.slots, [([9; 8], Slot { level: 2.0, at: 6.0 })]);
        let mended = read_account(&balanced(&account, -7.0, &[]).unwrap()).unwrap();
        assert_eq!(mended.totals, Totals { reserved: 7.0, ..Totals::default() });
        assert!(read_account(&account[..account.len() - 1]).is_err());
        assert!(read_account(&[2]).is_err(), "another version is not guessed at");
    }
}
