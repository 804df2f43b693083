-- KEYS lease, deadlines, account...  ARGV id, policy charge|refund, milliseconds in which a late settle may correct,
-- mark of the chain
local now = clock()
local record = call('GET', KEYS[1])
if state_of(record) ~= 'L' then
  call('ZREM', KEYS[2], ARGV[1])
  return reply(ABSENT, now, 0)
end
local lease = read_lease(record)
if lease.deadline > now then return reply(NOTDUE, now, 0) end
local terms = read_terms(record, lease.terms_at)
if mark_of(terms) ~= ARGV[4] then return reply(MOVED, now, 0) .. record end
local charged = { 0, 0, 0, 0 }
if ARGV[2] == 'charge' and lease.dispatched == 1 then charged = lease.checkpoint end
local held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
local actual = by_unit(charged[1], charged[2], charged[3], charged[4], 0)
-- No windows are known here: more than was held is charged to the window that the account is in.
local seen = load_all(read_accounts(), terms, now)
resolve(seen, terms, held, actual, lease.epochs, {}, now, 5, false)
call('ZREM', KEYS[2], ARGV[1])
local blob = sub(record, lease.terms_at + 1)
call('SET', KEYS[1], write_lease('E', lease.dispatched, lease.deadline, lease.held, charged, lease.epochs, blob),
  'PX', ARGV[3])
save_all(seen, terms.flat, now)
return reply(DONE, now, 0, { held[1], actual[1] })
