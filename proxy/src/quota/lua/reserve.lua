-- KEYS lease, deadlines, account...  ARGV id, input/output/nano/hold, terms, windows
local now = clock()
local strings = {}
if #KEYS > 2 then strings = call('MGET', unpack(KEYS, 3)) end
local state = state_of(call('GET', KEYS[1]))
if state == 'X' or state == 'E' then return reply(BURIED, now, 0) end
local terms = read_terms(ARGV[3], 0)
local starts = read_starts(ARGV[4], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end
local input, output, nano, hold_us = unpack_('<dddd', ARGV[2])
local need = by_unit(1, input, output, nano, 1)
-- Sent twice: one hold.
if state == 'L' then need = NOTHING end
local fits, levels, accounts, heads, counts, epochs = look(strings, terms, need, starts, now)
if state == 'L' then return reply(DONE, now, 0, levels) end
if not fits then
  local first = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local due = first[2] and tonumber(first[2]) <= now
  fits, levels = look(strings, terms, NOTHING, starts, now)
  return reply(FULL, now, due and 1 or 0, levels)
end
-- The only write that another type of key could refuse comes first: scripts are not rolled back.
call('ZADD', KEYS[2], now + hold_us, ARGV[1])
call('SET', KEYS[1], write_lease('L', 0, now + hold_us, { input, output, nano }, { 0, 0, 0, 0 }, epochs, ARGV[3]))
for a = 1, terms.accounts do
  local account = accounts[a]
  account[2] = account[2] + need[1]
  save(KEYS[2 + a], account, heads[a], counts[a], terms.flat[a], now)
end
return reply(DONE, now, 0, levels)
