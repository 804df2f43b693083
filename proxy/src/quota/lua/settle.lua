-- KEYS lease, deadlines, account...  ARGV id, actual requests/input/output/nano, windows, mark of the chain
local now = clock()
local record = call('GET', KEYS[1])
local state = state_of(record)
-- Settled already. Absence is idempotence: no tombstone is left by a settle.
if not state then return reply(ABSENT, now, 0) end
if state == 'X' then return reply(BURIED, now, 0) end
local lease = read_lease(record)
local terms = read_terms(record, lease.terms_at)
if mark_of(terms) ~= ARGV[4] then return reply(MOVED, now, 0) .. record end
local starts = read_starts(ARGV[3], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end
local requests, input, output, nano = unpack_('<dddd', ARGV[2])
local late = state == 'E'
local actual = by_unit(requests, input, output, nano, 0)
local seen = load_all(read_accounts(), terms, now)
resolve(seen, terms, charged_before(lease, late), actual, lease.epochs, starts, now, 3, late)
call('ZREM', KEYS[2], ARGV[1])
call('DEL', KEYS[1])
save_all(seen, terms.flat, now)
return reply(late and LATE or DONE, now, 0)
