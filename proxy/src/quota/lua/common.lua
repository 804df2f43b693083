-- What every script shares: the packed formats of codec.rs and the arithmetic of account.rs, same operations, same
-- order, same doubles. Never `..` or tostring on a number: they keep 14 digits.
local pack, unpack_ = struct.pack, struct.unpack
local rep, byte, sub = string.rep, string.byte, string.sub
local floor, ceil, max = math.floor, math.ceil, math.max
local DONE, FULL, ABSENT, BURIED, LATE, NOTDUE, STALE, MOVED = 0, 1, 2, 3, 4, 5, 6, 7
local BUCKET, CALENDAR, LIFETIME, HELD = 0, 1, 2, 3
local GRACE = 7200000000

local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function reply(status, now, due, levels)
  if not levels then return pack('<BBd', status, due, now) end
  return pack('<BBd' .. rep('d', #levels), status, due, now, unpack(levels))
end

-- Terms of a chain: count of limits, accounts and calendars, and a flat table: `keep` per account, then six values per
-- limit: account, kind, unit, id, cap, rate.
local function read_terms(blob, at)
  local low, high, accounts, calendars = byte(blob, at, at + 3)
  local count = low + high * 256
  local flat = { unpack_('<' .. rep('d', accounts) .. rep('BBBc8dd', count), blob, at + 12) }
  return { n = count, accounts = accounts, calendars = calendars, flat = flat, mark = sub(blob, at + 4, at + 11) }
end

-- Start of the window that holds `now` per calendar; nil when one is not covered. Missing windows give no starts:
-- overage then lands in the window that the account is in.
local function read_starts(windows, calendars, now)
  local starts = {}
  if #windows ~= 32 * calendars then return starts end
  if calendars == 0 then return starts end
  local w = { unpack_('<' .. rep('d', 4 * calendars), windows) }
  for c = 1, calendars do
    local o = 4 * (c - 1)
    if now < w[o + 1] or now >= w[o + 4] then return nil end
    if now < w[o + 2] then starts[c] = w[o + 1] elseif now < w[o + 3] then starts[c] = w[o + 2] else starts[c] = w[o + 3] end
  end
  return starts
end

-- An account: {version, keep until, reserved, settled, refunded, expired, then id, level, at per slot}; `n` slots.
local function read_account(packed)
  if not packed then return { 1, 0, 0, 0, 0, 0, n = 0 } end
  if byte(packed, 1) ~= 1 then error({ err = 'VERSION account written by another version' }) end
  local n = (#packed - 41) / 24
  local account = { unpack_('<Bddddd' .. rep('c8dd', n), packed) }
  account[7 + 3 * n] = nil
  account.n = n
  return account
end

local function write_account(key, account, keep, now)
  if keep == 0 then
    account[2] = -1
  elseif account[2] >= 0 then
    account[2] = max(account[2], now + keep)
  end
  local n = account.n
  local packed = pack('<Bddddd' .. rep('c8dd', n), unpack(account, 1, 6 + 3 * n))
  if account[2] < 0 then
    redis.call('SET', key, packed)
  else
    redis.call('SET', key, packed, 'PX', ceil((account[2] - now) / 1000))
  end
end

-- Index of the level of slot `id`; `guess` is where it stands unless the quota was edited.
local function find_slot(account, guess, id)
  local p = 4 + 3 * guess
  if account[p] == id then return p + 1 end
  for i = 1, account.n do
    p = 4 + 3 * i
    if account[p] == id then return p + 1 end
  end
  account.n = account.n + 1
  p = 4 + 3 * account.n
  account[p], account[p + 1], account[p + 2] = id, 0, 0
  return p + 1
end

-- Per limit the account table and the index of its level in it.
local function find_slots(terms, accounts, map)
  local flat, at, owner, seen = terms.flat, {}, {}, {}
  for i = 1, terms.n do
    local o = terms.accounts + 6 * (i - 1)
    local a = flat[o + 1]
    seen[a] = (seen[a] or 0) + 1
    owner[i] = accounts[map and byte(map, a) or a]
    at[i] = find_slot(owner[i], seen[a], flat[o + 4])
  end
  return owner, at
end

local function advance(kind, level, at, cap, rate, now, start)
  if kind == BUCKET then
    if at == 0 then return level, now end
    if now > at then return max(0, level - (now - at) * rate), now end
  elseif kind == CALENDAR and start then
    if at == 0 then return level, start end
    if start > at then
      local passed = max(1, floor((start - at) / rate + 0.5))
      return max(0, level - passed * cap), start
    end
  end
  return level, at
end

local function by_unit(requests, input, output, nano, concurrency)
  return { [0] = requests, input + output, input, output, nano, concurrency }
end

-- Levels of all limits brought forward to `now`, and whether `need` fits them all.
local function look(terms, owner, at, need, starts, now)
  local flat, levels, ats, fits, c = terms.flat, {}, {}, true, 0
  for i = 1, terms.n do
    local o = terms.accounts + 6 * (i - 1)
    local kind, cap, rate, start = flat[o + 2], flat[o + 5], flat[o + 6], nil
    if kind == CALENDAR then c = c + 1; start = starts[c] end
    local account, p = owner[i], at[i]
    local level, since = advance(kind, account[p], account[p + 1], cap, rate, now, start)
    levels[i], ats[i] = level, since
    local ceiling = cap
    if kind == BUCKET then ceiling = cap + (cap * 1e-12 + 1e-6) end
    local wanted = need[flat[o + 3]]
    if wanted ~= 0 and level + wanted > ceiling then fits = false end
  end
  return levels, ats, fits
end

-- Takes `need`; returns the admitting window of each calendar limit.
local function hold(terms, owner, at, need, levels, ats)
  local flat, epochs = terms.flat, {}
  for i = 1, terms.n do
    local o = terms.accounts + 6 * (i - 1)
    local account, p = owner[i], at[i]
    levels[i] = levels[i] + need[flat[o + 3]]
    account[p], account[p + 1] = levels[i], ats[i]
    if flat[o + 2] == CALENDAR then epochs[#epochs + 1] = ats[i] end
  end
  return epochs
end

-- Replaces `held` by `actual`; see Slot::resolved.
local function resolve(terms, owner, at, held, actual, epochs, starts, now)
  local flat, c = terms.flat, 0
  for i = 1, terms.n do
    local o = terms.accounts + 6 * (i - 1)
    local kind, unit = flat[o + 2], flat[o + 3]
    local account, p = owner[i], at[i]
    local change, epoch, start = actual[unit] - held[unit], nil, nil
    if kind == CALENDAR then c = c + 1; epoch, start = epochs[c], starts[c] end
    if change > 0 then
      local cap, rate = flat[o + 5], flat[o + 6]
      local level, since = advance(kind, account[p], account[p + 1], cap, rate, now, start)
      level = level + change
      account[p], account[p + 1] = level, since
      -- Debt outlives the idle time of its account.
      local pays = 0
      if kind == BUCKET and rate > 0 then pays = level / rate end
      if kind == CALENDAR and cap > 0 then pays = (level / cap + 1) * rate end
      if account[2] >= 0 then account[2] = max(account[2], now + pays + GRACE) end
    elseif change < 0 and (kind ~= CALENDAR or epoch == account[p + 1]) then
      account[p] = max(0, account[p] + change)
    end
  end
end

-- See Totals::resolve. `slot` is 4 for settled, 6 for expired.
local function count(account, slot, held, actual, late)
  local change = actual - held
  if change > 0 then account[3] = account[3] + change else account[5] = account[5] - change end
  if not late then
    account[slot] = account[slot] + actual
  elseif change > 0 then
    account[4] = account[4] + change
  else
    account[3] = account[3] - change
  end
end

-- A lease: state, dispatched, calendars, deadline, held input/output/nano, checkpoint requests/input/output/nano,
-- epochs, then the terms verbatim.
local function write_lease(state, dispatched, deadline, held, checkpoint, epochs, blob)
  return pack('<c1BBdddddddd' .. rep('d', #epochs), state, dispatched, #epochs, deadline, held[1], held[2], held[3],
    checkpoint[1], checkpoint[2], checkpoint[3], checkpoint[4], unpack(epochs)) .. blob
end

local function read_lease(packed)
  local f = { unpack_('<c1BBdddddddd', packed) }
  local calendars, epochs = f[3], {}
  if calendars > 0 then
    epochs = { unpack_('<' .. rep('d', calendars), packed, 68) }
    epochs[calendars + 1] = nil
  end
  local at = 68 + 8 * calendars
  return {
    state = f[1], dispatched = f[2], deadline = f[4], epochs = epochs, held = { f[5], f[6], f[7] },
    checkpoint = { f[8], f[9], f[10], f[11] }, terms_at = at, packed = packed,
  }
end

local function state_of(packed) return packed and sub(packed, 1, 1) end

local function read_accounts(got, first, last)
  local accounts = {}
  for i = first, last do accounts[#accounts + 1] = read_account(got[i]) end
  return accounts
end
