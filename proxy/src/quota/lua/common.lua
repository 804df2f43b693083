-- What the scripts share: the packed formats of codec.rs and the arithmetic of account.rs, same operations, same order,
-- same doubles. Never `..` or tostring on a number: they keep 14 digits. This chunk runs at every call, so it is short.
local pack, unpack_, rep, byte, sub = struct.pack, struct.unpack, string.rep, string.byte, string.sub
local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local DONE, FULL, ABSENT, BURIED, LATE, NOTDUE, STALE, MOVED, BROKEN = 0, 1, 2, 3, 4, 5, 6, 7, 8
local BUCKET, CALENDAR = 0, 1
local GRACE, SLACK = 7200000000, 60000000
-- A century in microseconds: beyond it a key is kept for ever, since no server can count so far ahead.
local CENTURY = 3155760000000000
-- Slots that a record, which counts them in a byte, can hold; and how long an untouched one matters: see slots.rs.
local MOST, DORMANT = 255, 7948800000000

local function clock()
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

local function reply(status, now, due, levels)
  if not levels then return pack('<BBd', status, due, now) end
  return pack('<BBd' .. rep('d', #levels), status, due, now, unpack(levels))
end

-- What a call needs or used, indexed by the code of the unit.
local function by_unit(requests, input, output, nano, concurrency)
  return { [0] = requests, input + output, input, output, nano, concurrency }
end

-- Terms of a chain at offset `o`. `flat`: `keep` per account, then kind, unit, ceiling and rate per limit, in the order
-- of the accounts; `ids`: where the ids of all limits start.
local function read_terms(blob, o)
  local accounts, calendars, low, high = byte(blob, o + 1, o + 4)
  local count, ids = low + high * 256, o + 13 + accounts
  return {
    accounts = accounts, calendars = calendars, blob = blob, o = o, ids = ids,
    flat = { unpack_('<' .. rep('d', accounts + 4 * count), blob, ids + 8 * count) },
  }
end

local function mark_of(terms) return sub(terms.blob, terms.o + 5, terms.o + 12) end

-- Start of the window that holds `now` per calendar, and in `most` what the caller may use of it; nil when one is not
-- covered. Without windows there are no starts: overage then lands in the window that the account is in.
local function read_starts(windows, calendars, now)
  local starts = {}
  if calendars == 0 or #windows ~= 40 * calendars then return starts end
  starts.most = {}
  local w = { unpack_('<' .. rep('d', 5 * calendars), windows) }
  for c = 1, calendars do
    local o = 5 * c - 4
    if now < w[o] or now >= w[o + 3] then return nil end
    if now < w[o + 1] then starts[c] = w[o] elseif now < w[o + 2] then starts[c] = w[o + 1] else starts[c] = w[o + 2] end
    starts.most[c] = w[o + 4]
  end
  return starts
end

-- Slots that outlast others when they are too many: those without a time, then the latest, then by id.
local function outlasts(packed, from)
  return function(i, j)
    local at, other = from[5 + 2 * i], from[5 + 2 * j]
    if at ~= other then return at == 0 or (other ~= 0 and at > other) end
    -- Not the ids as text: that compares by the server's locale.
    local high, low = unpack_('>I4I4', packed, 8 * i - 5)
    local other_high, other_low = unpack_('>I4I4', packed, 8 * j - 5)
    return high < other_high or (high == other_high and low < other_low)
  end
end

-- The slots of this chain first, then those of other models and former rules, as Account::make_room leaves them.
local function reorder(packed, count, own, ids, now)
  local from, where = { unpack_('<' .. rep('d', 5 + 2 * count), packed, 3 + 8 * count) }, {}
  for i = 1, count do where[sub(packed, 8 * i - 5, 8 * i + 2)] = i end
  local account, kept, rest = { from[1], from[2], from[3], from[4], from[5] }, {}, {}
  for j = 1, own do
    local id = sub(ids, 8 * j - 7, 8 * j)
    local i = where[id]
    where[id] = nil
    account[4 + 2 * j], account[5 + 2 * j] = i and from[4 + 2 * i] or 0, i and from[5 + 2 * i] or 0
  end
  for i = 1, count do
    local level, at = from[4 + 2 * i], from[5 + 2 * i]
    local says = level ~= 0 and (at == 0 or now - at <= DORMANT)
    if says and where[sub(packed, 8 * i - 5, 8 * i + 2)] then kept[#kept + 1] = i end
  end
  if own + #kept > MOST then table.sort(kept, outlasts(packed, from)) end
  for r = 1, min(#kept, MOST - own) do
    local i, place = kept[r], 4 + 2 * (own + r)
    rest[r], account[place], account[place + 1] = sub(packed, 8 * i - 5, 8 * i + 2), from[4 + 2 * i], from[5 + 2 * i]
  end
  return account, pack('<BB', 1, own + #rest) .. ids .. table.concat(rest), own + #rest
end

-- The accounts' strings, false for a new one; `last` is the last key that is one. MGET takes a key of another type for a new account, and SET would
-- overwrite it: GET refuses it before anything is written.
local function read_accounts(last)
  last = last or #KEYS
  if last == 2 then return {} end
  local strings = call('MGET', unpack(KEYS, 3, last))
  for a = 1, #strings do
    if not strings[a] then call('GET', KEYS[2 + a]) end
  end
  return strings
end

-- An account: keep until, reserved, settled, refunded, expired, then level and at per slot; its head (version, count
-- and ids) and the count of its slots. Slot j of the chain has its level at 4 + 2j.
local function load(packed, own, ids, now)
  if not packed then
    local account = { 0, 0, 0, 0, 0 }
    for j = 6, 5 + 2 * own do account[j] = 0 end
    return account, pack('<BB', 1, own) .. ids, own
  end
  local version, count = byte(packed, 1, 2)
  if version ~= 1 then error({ err = 'VERSION account written by another version' }) end
  if sub(packed, 3, 2 + 8 * own) ~= ids then return reorder(packed, count, own, ids, now) end
  return { unpack_('<' .. rep('d', 5 + 2 * count), packed, 3 + 8 * count) }, sub(packed, 1, 2 + 8 * count), count
end

-- The accounts of a chain, in its order: as `load` gives them, and how many slots of each are the chain's own.
local function load_all(strings, terms, now)
  local accounts, heads, counts, owns, id = {}, {}, {}, {}, terms.ids
  for a = 1, terms.accounts do
    local own = byte(terms.blob, terms.o + 12 + a)
    accounts[a], heads[a], counts[a] = load(strings[a], own, sub(terms.blob, id, id + 8 * own - 1), now)
    owns[a], id = own, id + 8 * own
  end
  return { accounts = accounts, heads = heads, counts = counts, owns = owns }
end

local function packed(account, head, count)
  return head .. pack('<' .. rep('d', 5 + 2 * count), unpack(account, 1, 5 + 2 * count))
end

-- `keep` is how long an idle account matters, 0 for ever. The key's own expiry is moved a minute ahead at a time.
local function save(key, account, head, count, keep, now)
  local until_ = account[1]
  if keep == 0 or keep > CENTURY or until_ < 0 then
    account[1] = -1
    call('SET', key, packed(account, head, count))
  elseif until_ < now + keep then
    account[1] = now + keep + SLACK
    call('SET', key, packed(account, head, count), 'PX', ceil((account[1] - now) / 1000))
  else
    call('SET', key, packed(account, head, count), 'KEEPTTL')
  end
end

-- Writes the accounts that `look` or `resolve` worked out. Every read and every check that can fail comes before the
-- first write of a script, which is never rolled back.
local function save_all(seen, keep, now)
  for a = 1, #seen.accounts do
    save(KEYS[2 + a], seen.accounts[a], seen.heads[a], seen.counts[a], keep[a], now)
  end
end

-- A lease: state, dispatched, count of epochs, deadline, held input/output/nano, checkpoint requests/input/output/nano,
-- the admitting window of each calendar limit, then the terms verbatim.
local function write_lease(state, dispatched, deadline, held, checkpoint, epochs, blob)
  return pack('<c1BBdddddddd' .. rep('d', #epochs), state, dispatched, #epochs, deadline, held[1], held[2], held[3],
    checkpoint[1], checkpoint[2], checkpoint[3], checkpoint[4], unpack(epochs)) .. blob
end

local function read_lease(record)
  local f, epochs = { unpack_('<c1BBdddddddd', record) }, {}
  local calendars = f[3]
  if calendars > 0 then
    epochs = { unpack_('<' .. rep('d', calendars), record, 68) }
    epochs[calendars + 1] = nil
  end
  return {
    dispatched = f[2], deadline = f[4], epochs = epochs, held = { f[5], f[6], f[7] },
    checkpoint = { f[8], f[9], f[10], f[11] }, terms_at = 67 + 8 * calendars,
  }
end

local function state_of(record) return record and sub(record, 1, 1) end
