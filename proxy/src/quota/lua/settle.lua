-- KEYS lease, deadlines, account...  ARGV id, actual requests/input/output/nano, windows, mark of the chain
local now = clock()
local got = redis.call('MGET', KEYS[1], unpack(KEYS, 3))
local state = state_of(got[1])
-- Settled already. Absence is idempotence: no tombstone is left by a settle.
if not state then return reply(ABSENT, now, 0) end
if state == 'X' then return reply(BURIED, now, 0) end
local lease = read_lease(got[1])
local terms = read_terms(got[1], lease.terms_at)
if terms.mark ~= ARGV[4] then return reply(MOVED, now, 0) .. got[1] end
local starts = read_starts(ARGV[3], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end
local requests, input, output, nano = unpack_('<dddd', ARGV[2])
local actual = by_unit(requests, input, output, nano, 0)
local late = state == 'E'
local held
if late then
  local charged = lease.checkpoint
  held = by_unit(charged[1], charged[2], charged[3], charged[4], 0)
else
  held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
end
local accounts = read_accounts(got, 2, 1 + terms.accounts)
local owner, at = find_slots(terms, accounts)
resolve(terms, owner, at, held, actual, lease.epochs, starts, now)
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
for a = 1, terms.accounts do
  count(accounts[a], 4, held[1], actual[1], late)
  write_account(KEYS[2 + a], accounts[a], terms.flat[a], now)
end
return reply(late and LATE or DONE, now, 0)
