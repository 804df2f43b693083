-- The queue of one account, as turns.rs has it. Its keys: all places in the order of their tenants' calls; a hash of what
-- places are ('p' and id), what tiers are owed ('t' and rank) and when gateways were heard ('g' and gateway); then per rank
-- the served tokens of tenants that wait, and per rank those of others that are ahead of them.
local char = string.char
-- Microseconds that a gateway's places outlast its last word, and milliseconds that a queue outlasts its last call.
local LIFE, QUEUE_MS = 2000000, 7200000
-- Microseconds between two looks at all places.
local SWEEP = 1000000

local function queue_at(first, ranks)
  local q = { order = KEYS[first], hash = KEYS[first + 1], ranks = ranks, waiting = {}, idle = {} }
  for r = 0, ranks - 1 do q.waiting[r], q.idle[r] = KEYS[first + 2 + r], KEYS[first + 2 + ranks + r] end
  return q
end

local function is_waited_in(q, rank) return call('ZCARD', q.waiting[rank]) > 0 end

local function depth(q, rank)
  return call('ZLEXCOUNT', q.order, '[' .. char(rank), '(' .. char(rank + 1))
end

-- What it is owed, what its places ask for, and the counter of the tenant that left last.
local function tier(q, rank)
  local record = call('HGET', q.hash, 't' .. char(rank))
  if not record then return 0, 0, 0 end
  return unpack_('<ddd', record)
end

local function put_tier(q, rank, owed, total, last)
  call('HSET', q.hash, 't' .. char(rank), pack('<ddd', owed, total, last))
end

local function place_of(q, id)
  local record = call('HGET', q.hash, 'p' .. id)
  if not record then return nil end
  local rank, tenant, since, until_, cost, gateway = unpack_('<Bc8dddc16', record)
  local member = char(rank) .. tenant .. pack('>d', since) .. id
  return { rank = rank, tenant = tenant, since = since, until_ = until_, cost = cost, gateway = gateway, member = member }
end

local function first_of(q, rank, tenant)
  local calls = '[' .. char(rank) .. tenant
  return call('ZRANGEBYLEX', q.order, calls, calls .. '\255', 'LIMIT', 0, 1)[1]
end

local function enter(q, id, rank, tenant, since, until_, cost, gateway, now)
  local waiting, idle = q.waiting[rank], q.idle[rank]
  local owed, total, last = tier(q, rank)
  if not call('ZSCORE', waiting, tenant) then
    local least = call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or last
    call('ZREMRANGEBYSCORE', idle, '-inf', least)
    local served = call('ZSCORE', idle, tenant) or least
    call('ZREM', idle, tenant)
    call('ZADD', waiting, served, tenant)
  end
  put_tier(q, rank, owed, total + cost, last)
  call('ZADD', q.order, 0, char(rank) .. tenant .. pack('>d', since) .. id)
  local record = pack('<Bc8dddc16', rank, tenant, since, until_, cost, gateway)
  call('HSET', q.hash, 'p' .. id, record, 'g' .. gateway, pack('<d', now))
  for _, key in ipairs({ q.order, q.hash, waiting, idle }) do call('PEXPIRE', key, QUEUE_MS) end
end

-- Who asks waits, and its gateway is alive.
local function renew(q, id, until_, now)
  local place = place_of(q, id)
  if not place then return false end
  local record = pack('<Bc8dddc16', place.rank, place.tenant, place.since, until_, place.cost, place.gateway)
  call('HSET', q.hash, 'p' .. id, record, 'g' .. place.gateway, pack('<d', now))
  return true
end

local function leave(q, id)
  local place = place_of(q, id)
  if not place then return end
  local rank, tenant = place.rank, place.tenant
  call('HDEL', q.hash, 'p' .. id)
  call('ZREM', q.order, place.member)
  local owed, total, last = tier(q, rank)
  if not first_of(q, rank, tenant) then
    local served = call('ZSCORE', q.waiting[rank], tenant) or '0'
    call('ZREM', q.waiting[rank], tenant)
    call('ZADD', q.idle[rank], served, tenant)
    last = tonumber(served)
  end
  if not is_waited_in(q, rank) then owed = 0 end
  put_tier(q, rank, owed, total - place.cost, last)
end

local function serve(q, id, shares)
  local place = place_of(q, id)
  if not place then return end
  local rank, passed = place.rank, false
  for r = 0, rank - 1 do passed = passed or is_waited_in(q, r) end
  call('ZINCRBY', q.waiting[rank], place.cost, place.tenant)
  if passed then
    local owed, total, last = tier(q, rank)
    put_tier(q, rank, owed - place.cost, total, last)
  end
  for r = rank + 1, q.ranks - 1 do
    if is_waited_in(q, r) then
      local owed, total, last = tier(q, r)
      put_tier(q, r, owed + place.cost * shares[r + 1], total, last)
    end
  end
  leave(q, id)
end

-- Its call may still wait, and its gateway was heard lately.
local function counts(q, place, now)
  local heard = place and call('HGET', q.hash, 'g' .. place.gateway)
  return heard and now <= place.until_ and now - unpack_('<d', heard) <= LIFE
end

-- Gives up all places that do not count: of a queue that is full of them no call would ever come to the head. Once a second
-- at most, however many calls are turned away.
local function sweep(q, now)
  local swept = call('HGET', q.hash, 's')
  if swept and now - unpack_('<d', swept) < SWEEP then return end
  call('HSET', q.hash, 's', pack('<d', now))
  for _, member in ipairs(call('ZRANGE', q.order, 0, -1)) do
    local id = sub(member, -16)
    if not counts(q, place_of(q, id), now) then leave(q, id) end
  end
end

local function head(q, rank, now)
  while true do
    local tenant = call('ZRANGE', q.waiting[rank], 0, 0)[1]
    local member = tenant and first_of(q, rank, tenant)
    if not member then return nil end
    local id = sub(member, -16)
    local place = place_of(q, id)
    if counts(q, place, now) then return id, place.cost end
    if not place then return nil end
    leave(q, id)
  end
end

local function next_in(q, now)
  local first
  for r = 0, q.ranks - 1 do
    local id, cost = head(q, r, now)
    if id and not first then
      first = id
    elseif id and tier(q, r) >= cost then
      return id
    end
  end
  return first
end

-- Calls and tokens that are served before a place, or before one that is yet to be taken.
local function ahead(q, rank, tenant, place)
  local calls, tokens = 0, 0
  for r = 0, rank - 1 do
    local _, total = tier(q, r)
    calls, tokens = calls + depth(q, r), tokens + total
  end
  local first = char(rank) .. tenant
  local own = call('ZLEXCOUNT', q.order, '[' .. first, '(' .. (place and place.member or first .. '\255'))
  local others = call('ZCARD', q.waiting[rank]) - (call('ZSCORE', q.waiting[rank], tenant) and 1 or 0)
  local all = depth(q, rank) - (place and 1 or 0)
  if all > 0 then
    local before, _, total = min(own + others * (own + 1), all), tier(q, rank)
    calls, tokens = calls + before, tokens + (total - (place and place.cost or 0)) * before / all
  end
  return calls, tokens
end
