-- KEYS lease, deadlines, account...  ARGV id, input/output/nano/hold, terms, windows
local now = clock()
local strings = read_accounts()
local state = state_of(call('GET', KEYS[1]))
if state == 'X' or state == 'E' then return reply(BURIED, now, 0) end
local terms = read_terms(ARGV[3], 0)
local starts = read_starts(ARGV[4], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end
local input, output, nano, hold_us = unpack_('<dddd', ARGV[2])
local need = by_unit(1, input, output, nano, 1)
-- Sent twice: one hold.
if state == 'L' then need = NOTHING end
local seen = load_all(strings, terms, now)
local fits, taken, before = look(seen, terms, need, starts, now)
if state == 'L' then return reply(DONE, now, 0, before) end
if not fits then
  local first = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local due = first[2] and tonumber(first[2]) <= now
  return reply(FULL, now, due and 1 or 0, before)
end
take(seen, taken, need[1])
write_hold(seen, terms, ARGV[3], { input, output, nano }, taken.epochs, 0, now + hold_us, { 0, 0, 0, 0 }, now)
return reply(DONE, now, 0, taken.levels)
