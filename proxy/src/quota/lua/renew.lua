-- KEYS lease, deadlines, account...  ARGV id, checkpoint requests/input/output/nano/ttl, dispatched, reassert,
-- held input/output/nano, terms, windows
local now = clock()
local record = call('GET', KEYS[1])
local state = state_of(record)
if state and state ~= 'L' then return reply(BURIED, now, 0) end
if not state and ARGV[4] ~= '1' then return reply(ABSENT, now, 0) end
local requests, input, output, nano, ttl = unpack_('<ddddd', ARGV[2])
local checkpoint, dispatched, deadline = { requests, input, output, nano }, tonumber(ARGV[3]), now + ttl
if state then
  local lease = read_lease(record)
  call('ZADD', KEYS[2], deadline, ARGV[1])
  local blob = sub(record, lease.terms_at + 1)
  call('SET', KEYS[1], write_lease('L', dispatched, deadline, lease.held, checkpoint, lease.epochs, blob))
  -- A call may outlast the idle time of its accounts.
  for a = 3, #KEYS do call('PEXPIRE', KEYS[a], GRACE / 1000, 'GT') end
  return reply(DONE, now, 0)
end
-- The store has lost the lease: take the hold again, whatever the limits. It was admitted once.
local terms = read_terms(ARGV[6], 0)
local starts = read_starts(ARGV[7], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end
local held = { unpack_('<ddd', ARGV[5]) }
local need, seen = by_unit(1, held[1], held[2], held[3], 1), load_all(read_accounts(), terms, now)
local _, taken = look(seen, terms, need, starts, now)
take(seen, taken, need[1])
write_hold(seen, terms, ARGV[6], held, taken.epochs, dispatched, deadline, checkpoint, now)
return reply(DONE, now, 0)
