-- What the scripts share: the packed formats of codec.rs and the arithmetic of account.rs, same operations, same order,
-- same doubles. Never `..` or tostring on a number: they keep 14 digits. This chunk runs at every call, so it is short.
local pack, unpack_, rep, byte, sub = struct.pack, struct.unpack, string.rep, string.byte, string.sub
local call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max
local DONE, FULL, ABSENT, BURIED, LATE, NOTDUE, STALE, MOVED = 0, 1, 2, 3, 4, 5, 6, 7
local BUCKET, CALENDAR = 0, 1
local GRACE, SLACK = 7200000000, 60000000

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

-- Start of the window that holds `now` per calendar; nil when one is not covered. Without windows there are no starts:
-- overage then lands in the window that the account is in.
local function read_starts(windows, calendars, now)
  local starts = {}
  if calendars == 0 or #windows ~= 32 * calendars then return starts end
  local w = { unpack_('<' .. rep('d', 4 * calendars), windows) }
  for c = 1, calendars do
    local o = 4 * c - 3
    if now < w[o] or now >= w[o + 3] then return nil end
    if now < w[o + 1] then starts[c] = w[o] elseif now < w[o + 2] then starts[c] = w[o + 1] else starts[c] = w[o + 2] end
  end
  return starts
end

-- The slots of this chain first, those of other models and former rules behind them.
local function reorder(packed, count, own, ids)
  local from, where = { unpack_('<' .. rep('d', 5 + 2 * count), packed, 3 + 8 * count) }, {}
  for i = 1, count do where[sub(packed, 8 * i - 5, 8 * i + 2)] = i end
  local account, rest = { from[1], from[2], from[3], from[4], from[5] }, ''
  for j = 1, own do
    local id = sub(ids, 8 * j - 7, 8 * j)
    local i = where[id]
    where[id] = nil
    account[4 + 2 * j], account[5 + 2 * j] = i and from[4 + 2 * i] or 0, i and from[5 + 2 * i] or 0
  end
  local total = own
  for i = 1, count do
    local id = sub(packed, 8 * i - 5, 8 * i + 2)
    if where[id] then
      rest, total = rest .. id, total + 1
      account[4 + 2 * total], account[5 + 2 * total] = from[4 + 2 * i], from[5 + 2 * i]
    end
  end
  if total > 255 then error({ err = 'SLOTS an account holds more limits than 255' }) end
  return account, pack('<BB', 1, total) .. ids .. rest, total
end

-- An account: keep until, reserved, settled, refunded, expired, then level and at per slot; its head (version, count
-- and ids) and the count of its slots. Slot j of the chain has its level at 4 + 2j.
local function load(packed, own, ids)
  if not packed then
    local account = { 0, 0, 0, 0, 0 }
    for j = 6, 5 + 2 * own do account[j] = 0 end
    return account, pack('<BB', 1, own) .. ids, own
  end
  local version, count = byte(packed, 1, 2)
  if version ~= 1 then error({ err = 'VERSION account written by another version' }) end
  if sub(packed, 3, 2 + 8 * own) ~= ids then return reorder(packed, count, own, ids) end
  return { unpack_('<' .. rep('d', 5 + 2 * count), packed, 3 + 8 * count) }, sub(packed, 1, 2 + 8 * count), count
end

local function packed(account, head, count)
  return head .. pack('<' .. rep('d', 5 + 2 * count), unpack(account, 1, 5 + 2 * count))
end

-- `keep` is how long an idle account matters, 0 for ever. The key's own expiry is moved a minute ahead at a time.
local function save(key, account, head, count, keep, now)
  local until_ = account[1]
  if keep == 0 or until_ < 0 then
    account[1] = -1
    call('SET', key, packed(account, head, count))
  elseif until_ < now + keep then
    account[1] = now + keep + SLACK
    call('SET', key, packed(account, head, count), 'PX', ceil((account[1] - now) / 1000))
  else
    call('SET', key, packed(account, head, count), 'KEEPTTL')
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
