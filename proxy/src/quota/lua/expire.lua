-- KEYS lease, deadlines, account...  ARGV id, policy charge|refund, milliseconds in which a late settle may correct,
-- mark of the chain
local now = clock()
local got = redis.call('MGET', KEYS[1], unpack(KEYS, 3))
if state_of(got[1]) ~= 'L' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return reply(ABSENT, now, 0)
end
local lease = read_lease(got[1])
if lease.deadline > now then return reply(NOTDUE, now, 0) end
local terms = read_terms(got[1], lease.terms_at)
if terms.mark ~= ARGV[4] then return reply(MOVED, now, 0) .. got[1] end
local charged = { 0, 0, 0, 0 }
if ARGV[2] == 'charge' and lease.dispatched == 1 then charged = lease.checkpoint end
local held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
local actual = by_unit(charged[1], charged[2], charged[3], charged[4], 0)
local accounts = read_accounts(got, 2, 1 + terms.accounts)
local owner, at = find_slots(terms, accounts)
-- No windows are known here: more than was held is charged to the window that the account is in.
resolve(terms, owner, at, held, actual, lease.epochs, {}, now)
redis.call('ZREM', KEYS[2], ARGV[1])
local blob = sub(got[1], lease.terms_at)
local tomb = write_lease('E', lease.dispatched, lease.deadline, lease.held, charged, lease.epochs, blob)
redis.call('SET', KEYS[1], tomb, 'PX', ARGV[3])
for a = 1, terms.accounts do
  count(accounts[a], 6, held[1], actual[1])
  write_account(KEYS[2 + a], accounts[a], terms.flat[a], now)
end
return reply(DONE, now, 0, { held[1], actual[1] })
