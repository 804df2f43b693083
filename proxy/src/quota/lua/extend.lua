-- KEYS lease, deadlines, account...
-- ARGV id, more output/nano/ttl, windows, mark of the chain, a byte per limit: 1 if it may refuse
local now = clock()
local strings = read_accounts()
local record = call('GET', KEYS[1])
local state = state_of(record)
if not state then return reply(ABSENT, now, 0) end
if state ~= 'L' then return reply(BURIED, now, 0) end
local lease = read_lease(record)
local terms = read_terms(record, lease.terms_at)
if mark_of(terms) ~= ARGV[4] then return reply(MOVED, now, 0) .. record end
local starts = read_starts(ARGV[3], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end

local output, nano, ttl = unpack_('<ddd', ARGV[2])
local more, seen = by_unit(0, 0, output, nano, 0), load_all(strings, terms, now)
local _, taken, before = look(seen, terms, more, starts, now)
local flat, t, epochs, c = terms.flat, terms.accounts, {}, 0
for i = 1, #before do
  local kind, wanted, ceiling = flat[t + 1], more[flat[t + 2]], flat[t + 3]
  if kind == CALENDAR then
    c = c + 1
    ceiling, epochs[c] = starts.most[c], wanted ~= 0 and taken.epochs[c] or lease.epochs[c]
  end
  if byte(ARGV[5], i) == 1 and wanted ~= 0 and taken.levels[i] > ceiling then return reply(FULL, now, 0, before) end
  t = t + 4
end
take(seen, taken, more[1])
local held = { lease.held[1], lease.held[2] + output, lease.held[3] + nano }
write_hold(seen, terms, sub(record, lease.terms_at + 1), held, epochs, lease.dispatched, max(lease.deadline, now + ttl),
  lease.checkpoint, now)
return reply(DONE, now, 0, taken.levels)
