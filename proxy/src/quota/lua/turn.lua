-- One call asks for its turn, as Ledger::turn has it.
-- KEYS lease, deadlines, account..., then the keys of each queue of the chain, innermost first
-- ARGV id, input/output/nano/hold, terms, windows, then in one: id, gateway, since, wait, rank, ranks, queues; per queue
-- its account, tenant and depth; a share per rank; per limit whether calls wait for it
local QUEUED, CROWDED = 9, 10
local now = clock()
local terms, plan = read_terms(ARGV[3], 0), ARGV[5]
local id, gateway, since, wait, rank, ranks, count, o = unpack_('<c16c16ddBBB', plan)
local NOBODY = rep('\0', 16)
local function nowhere(answer) return answer .. pack('<Bdddc16', 255, 0, 0, 0, NOBODY) end

-- Everything that may turn out to be of another type is read before anything is written.
local overdue = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local due = overdue and tonumber(overdue) <= now and 1 or 0
local strings = read_accounts(2 + terms.accounts)
local state = state_of(call('GET', KEYS[1]))
if state == 'X' or state == 'E' then return nowhere(reply(BURIED, now, 0)) end
local starts = read_starts(ARGV[4], terms.calendars, now)
if not starts then return nowhere(reply(STALE, now, 0)) end
local input, output, nano, hold_us = unpack_('<dddd', ARGV[2])
local need = by_unit(1, input, output, nano, 1)
if state == 'L' then need = NOTHING end
local seen = load_all(strings, terms, now)
local _, taken, before = look(seen, terms, need, starts, now)
if state == 'L' then return nowhere(reply(DONE, now, 0, before)) end

local queues, at = {}, nil
for k = 1, count do
  local account, tenant, depth_
  account, tenant, depth_, o = unpack_('<Bc8I4', plan, o)
  local q = queue_at(3 + terms.accounts + (k - 1) * (2 + 2 * ranks), ranks)
  queues[k], q.account, q.tenant, q.depth = q, account, tenant, depth_
  if not at and renew(q, id, now + wait, now) then at = k end
end
local shares = { unpack_('<' .. rep('d', ranks), plan, o) }
local waits = sub(plan, o + 8 * ranks)

local function spot(status, k, place, levels)
  local q = queues[k]
  local calls, tokens = ahead(q, rank, q.tenant, place)
  local first = place and next_in(q, now) or NOBODY
  local from = place and place.since or since
  return reply(status, now, due, levels) .. pack('<Bdddc16', k - 1, from, calls, tokens, first)
end
local function queued(k) return spot(QUEUED, k, place_of(queues[k], id), before) end

if at and next_in(queues[at], now) ~= id then return queued(at) end
-- Which accounts have no room, and whether a limit that nobody waits for is among those in the way.
local full, refused, t, c, i = {}, false, terms.accounts, 0, 0
for a = 1, terms.accounts do
  for _ = 1, seen.owns[a] do
    local ceiling = terms.flat[t + 3]
    if terms.flat[t + 1] == CALENDAR then c = c + 1; ceiling = starts.most[c] end
    i = i + 1
    if need[terms.flat[t + 2]] ~= 0 and taken.levels[i] > ceiling then
      full[a - 1], refused = true, refused or byte(waits, i) == 0
    end
    t = t + 4
  end
end
if refused then
  if at then leave(queues[at], id) end
  return nowhere(reply(FULL, now, due, before))
end

if since == 0 then since = now end
for k = 1, count do
  local q = queues[k]
  local blocked = full[q.account]
  if at == k then
    if blocked then return queued(k) end
  elseif blocked or (not (at and k < at) and call('ZCARD', q.order) > 0) then
    if at and k > at then serve(queues[at], id, shares) elseif at then leave(queues[at], id) end
    if depth(q, rank) >= q.depth then sweep(q, now) end
    if depth(q, rank) >= q.depth then return spot(CROWDED, k, nil, before) end
    enter(q, id, rank, q.tenant, since, now + wait, input + output, gateway, now)
    at = k
    if blocked or next_in(q, now) ~= id then return queued(k) end
  end
end
take(seen, taken, need[1])
write_hold(seen, terms, ARGV[3], { input, output, nano }, taken.epochs, 0, now + hold_us, { 0, 0, 0, 0 }, now)
local held = reply(DONE, now, 0, taken.levels)
if not at then return nowhere(held) end
serve(queues[at], id, shares)
return held .. pack('<Bdddc16', at - 1, since, 0, 0, next_in(queues[at], now) or NOBODY)
