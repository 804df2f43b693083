-- KEYS lease, deadlines, account...  ARGV id, input/output/nano/hold, terms, windows
local now = clock()
local got = redis.call('MGET', KEYS[1], unpack(KEYS, 3))
local state = state_of(got[1])
if state == 'X' or state == 'E' then return reply(BURIED, now, 0) end
local terms = read_terms(ARGV[3], 1)
local starts = read_starts(ARGV[4], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end
local input, output, nano, hold_us = unpack_('<dddd', ARGV[2])
local need = by_unit(1, input, output, nano, 1)
local accounts = read_accounts(got, 2, 1 + terms.accounts)
local owner, at = find_slots(terms, accounts)
local levels, ats, fits = look(terms, owner, at, need, starts, now)
-- Sent twice: one hold.
if state == 'L' then return reply(DONE, now, 0, levels) end
if not fits then
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local due = first[2] and tonumber(first[2]) <= now
  return reply(FULL, now, due and 1 or 0, levels)
end
-- The only write that another type of key could refuse comes first: scripts are not rolled back.
redis.call('ZADD', KEYS[2], now + hold_us, ARGV[1])
local epochs = hold(terms, owner, at, need, levels, ats)
redis.call('SET', KEYS[1], write_lease('L', 0, now + hold_us, { input, output, nano }, { 0, 0, 0, 0 }, epochs, ARGV[3]))
for a = 1, terms.accounts do
  accounts[a][3] = accounts[a][3] + need[1]
  write_account(KEYS[2 + a], accounts[a], terms.flat[a], now)
end
return reply(DONE, now, 0, levels)
