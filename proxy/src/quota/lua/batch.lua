-- One batch: reserves and settles of many calls, in order, each as if it were alone. What they share is done once: the
-- clock, reading, unpacking and writing of accounts and leases.
-- KEYS account..., deadlines..., lease per operation
-- ARGV counts of accounts, deadlines and chains, then per chain the key index of each account and of its deadlines, all
-- in 16 bits; terms and windows per chain; last the operations: 0 reserve or 1 settle, its chain, four doubles.
local RESERVE = 0
local now = clock()
local strings = call('MGET', unpack(KEYS))
local plan = ARGV[1]
local accounts, deadlines, chain_count = unpack_('<HHH', plan)

-- Accounts in tables, by key index. A chain sees its own limits first; another chain may have other limits there.
local tables, heads, counts, layouts, keeps = {}, {}, {}, {}, {}

-- What a chain cannot work with, asked before anything is written: an account of another version, or a key that holds
-- something else. MGET takes the latter for nothing, and SET would overwrite it.
local function fault_of(chain)
  local count = redis.pcall('ZCARD', KEYS[chain.deadlines])
  if type(count) == 'table' then return count.err end
  for a = 1, #chain.keys do
    local k = chain.keys[a]
    if strings[k] then
      local version, count = byte(strings[k], 1, 2)
      if version ~= 1 then return 'VERSION account written by another version' end
      if #strings[k] ~= 42 + 24 * count then return 'LENGTH account is not as long as its limits need' end
    else
      local got = redis.pcall('GET', KEYS[k])
      if type(got) == 'table' then return got.err end
    end
  end
end

local function read_chain(c, at)
  local blob = ARGV[2 * c]
  local terms = read_terms(blob, 0)
  local chain = { terms = terms, blob = blob, mark = mark_of(terms), keys = {}, ids = {} }
  local id = terms.ids
  for a = 1, terms.accounts do
    local own = byte(blob, 12 + a)
    chain.keys[a] = unpack_('<H', plan, at)
    chain.ids[a] = sub(blob, id, id + 8 * own - 1)
    id, at = id + 8 * own, at + 2
  end
  chain.deadlines = unpack_('<H', plan, at)
  chain.starts = read_starts(ARGV[2 * c + 1], terms.calendars, now)
  chain.fault = fault_of(chain)
  return chain, at + 2
end

-- The accounts of a chain, as `load_all` gives them.
local function see(chain)
  local seen = chain.seen or { accounts = {}, owns = {} }
  for a = 1, #chain.keys do
    local k, ids = chain.keys[a], chain.ids[a]
    local own = #ids / 8
    if layouts[k] ~= ids then
      local before = strings[k]
      if layouts[k] then before = packed(tables[k], heads[k], counts[k]) end
      tables[k], heads[k], counts[k] = load(before, own, ids, now)
      layouts[k] = ids
    end
    seen.accounts[a], seen.owns[a] = tables[k], own
  end
  chain.seen = seen
  return seen
end

-- The accounts of this chain are to be written, with the idle time that it gives them; the longest counts.
local function touched(chain)
  local flat = chain.terms.flat
  for a = 1, #chain.keys do
    local k, keep = chain.keys[a], flat[a]
    local known = keeps[k]
    if not known or keep == 0 or (known ~= 0 and keep > known) then keeps[k] = keep end
  end
end

-- Commands to come: one per list of deadlines, one for all new leases, one for all that end.
local adding, removing, leases, gone = {}, {}, { 'MSET' }, { 'DEL' }

local function listed(lists, command, chain)
  local list = lists[chain.deadlines] or { command, KEYS[chain.deadlines] }
  lists[chain.deadlines] = list
  return list
end

local function reserve(chain, lease, state, input, output, nano, hold_us)
  if state == 'X' or state == 'E' then return reply(BURIED, now, 0) end
  if not chain.starts then return reply(STALE, now, 0) end
  local need = by_unit(1, input, output, nano, 1)
  -- Sent twice: one hold.
  if state == 'L' then need = NOTHING end
  local seen = see(chain)
  local fits, taken, before = look(seen, chain.terms, need, chain.starts, now)
  if state == 'L' then return reply(DONE, now, 0, before) end
  if not fits then
    local first = call('ZRANGE', KEYS[chain.deadlines], 0, 0, 'WITHSCORES')
    local overdue = first[2] and tonumber(first[2]) <= now
    return reply(FULL, now, overdue and 1 or 0, before)
  end
  take(seen, taken, need[1])
  touched(chain)
  local deadline, key, list = now + hold_us, KEYS[lease], listed(adding, 'ZADD', chain)
  list[#list + 1], list[#list + 2] = deadline, sub(key, -32)
  local record = write_lease('L', 0, deadline, { input, output, nano }, { 0, 0, 0, 0 }, taken.epochs, chain.blob)
  leases[#leases + 1], leases[#leases + 2] = key, record
  return reply(DONE, now, 0, taken.levels)
end

local function settle(chain, lease, state, requests, input, output, nano)
  -- Settled already. Absence is idempotence: no tombstone is left by a settle.
  if not state then return reply(ABSENT, now, 0) end
  if state == 'X' then return reply(BURIED, now, 0) end
  local record, key = strings[lease], KEYS[lease]
  if #record < 79 + 8 * byte(record, 3) then return reply(BROKEN, now, 0) .. 'LENGTH lease is cut short' end
  local hold = read_lease(record)
  if sub(record, hold.terms_at + 5, hold.terms_at + 12) ~= chain.mark then return reply(MOVED, now, 0) .. record end
  if not chain.starts then return reply(STALE, now, 0) end
  local late, actual = state == 'E', by_unit(requests, input, output, nano, 0)
  resolve(see(chain), chain.terms, charged_before(hold, late), actual, hold.epochs, chain.starts, now, 3, late)
  touched(chain)
  local list = listed(removing, 'ZREM', chain)
  list[#list + 1], gone[#gone + 1] = sub(key, -32), key
  return reply(late and LATE or DONE, now, 0)
end

local chains, at = {}, 7
for c = 1, chain_count do chains[c], at = read_chain(c, at) end
local operations, replies = ARGV[2 * chain_count + 2], {}
for o = 1, #KEYS - accounts - deadlines do
  local kind, c, w, x, y, z = unpack_('<BHdddd', operations, 35 * o - 34)
  local chain, lease = chains[c], accounts + deadlines + o
  local state = state_of(strings[lease])
  if chain.fault then
    replies[o] = reply(BROKEN, now, 0) .. chain.fault
  elseif kind == RESERVE then
    replies[o] = reserve(chain, lease, state, w, x, y, z)
  else
    replies[o] = settle(chain, lease, state, w, x, y, z)
  end
end

for _, list in pairs(adding) do call(unpack(list)) end
for _, list in pairs(removing) do call(unpack(list)) end
if #leases > 1 then call(unpack(leases)) end
if #gone > 1 then call(unpack(gone)) end
for k, keep in pairs(keeps) do save(KEYS[k], tables[k], heads[k], counts[k], keep, now) end
return replies
