-- KEYS lease, deadlines, accounts of the new chain..., other accounts of the old one...
-- ARGV id, input/output/nano/hold, terms, windows, mark of the old chain, key index per old account
local now = clock()
local strings = read_accounts()
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
local map, theirs = ARGV[6], {}
for a = 1, old.accounts do theirs[a] = strings[byte(map, a)] end
local held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
local back = load_all(theirs, old, now)
resolve(back, old, held, NOTHING, lease.epochs, {}, now, 3, false)
for a = 1, old.accounts do strings[byte(map, a)] = packed(back.accounts[a], back.heads[a], back.counts[a]) end
local input, output, nano, hold_us = unpack_('<dddd', ARGV[2])
local need, seen = by_unit(1, input, output, nano, 1), load_all(strings, terms, now)
local fits, taken, before = look(seen, terms, need, starts, now)
-- Nothing has been written: the old hold stands.
if not fits then return reply(FULL, now, 0, before) end
take(seen, taken, need[1])
write_hold(seen, terms, ARGV[3], { input, output, nano }, taken.epochs, 0, now + hold_us, { 0, 0, 0, 0 }, now)
-- Accounts that only the old chain has.
for a = 1, old.accounts do
  local key = byte(map, a)
  if key > terms.accounts then
    save(KEYS[2 + key], back.accounts[a], back.heads[a], back.counts[a], old.flat[a], now)
  end
end
return reply(DONE, now, 0, taken.levels)
