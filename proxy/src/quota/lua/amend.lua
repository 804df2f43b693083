-- KEYS lease, deadlines, accounts of the new chain..., other accounts of the old one...
-- ARGV id, input/output/nano/hold, terms, windows, mark of the old chain, key index per old account
local now = clock()
local strings = {}
if #KEYS > 2 then strings = call('MGET', unpack(KEYS, 3)) end
local record = call('GET', KEYS[1])
local state = state_of(record)
if not state then return reply(ABSENT, now, 0) end
if state ~= 'L' then return reply(BURIED, now, 0) end
local lease = read_lease(record)
local old = read_terms(record, lease.terms_at)
if mark_of(old) ~= ARGV[5] then return reply(MOVED, now, 0) .. record end
local terms = read_terms(ARGV[3], 0)
local starts = read_starts(ARGV[4], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end

-- Give the old hold back in memory, then look at the new one on what that leaves.
local map, theirs, keep = ARGV[6], {}, {}
for a = 1, old.accounts do
  theirs[a], keep[byte(map, a)] = strings[byte(map, a)], old.flat[a]
end
local held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
resolve(theirs, old, held, NOTHING, lease.epochs, {}, now, 3, false, function(a, account, head, count)
  strings[byte(map, a)] = packed(account, head, count)
end)
local input, output, nano, hold_us = unpack_('<dddd', ARGV[2])
local need = by_unit(1, input, output, nano, 1)
local fits, levels, accounts, heads, counts, epochs = look(strings, terms, need, starts, now)
if not fits then
  -- Nothing has been written: the old hold stands.
  fits, levels = look(strings, terms, NOTHING, starts, now)
  return reply(FULL, now, 0, levels)
end
call('ZADD', KEYS[2], now + hold_us, ARGV[1])
call('SET', KEYS[1], write_lease('L', 0, now + hold_us, { input, output, nano }, { 0, 0, 0, 0 }, epochs, ARGV[3]))
for a = 1, terms.accounts do
  local account = accounts[a]
  account[2] = account[2] + need[1]
  save(KEYS[2 + a], account, heads[a], counts[a], terms.flat[a], now)
end
for a = terms.accounts + 1, #KEYS - 2 do
  local account, head, count = load(strings[a], 0, '')
  save(KEYS[2 + a], account, head, count, keep[a], now)
end
return reply(DONE, now, 0, levels)
