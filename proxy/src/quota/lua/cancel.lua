-- KEYS lease, deadlines, account...  ARGV id, milliseconds to forbid the id, mark of the chain
local now = clock()
local got = redis.call('MGET', KEYS[1], unpack(KEYS, 3))
local state = state_of(got[1])
if state == 'E' then return reply(BURIED, now, 0) end
if state == 'L' then
  local lease = read_lease(got[1])
  local terms = read_terms(got[1], lease.terms_at)
  if terms.mark ~= ARGV[3] then return reply(MOVED, now, 0) .. got[1] end
  local held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
  local accounts = read_accounts(got, 2, 1 + terms.accounts)
  local owner, at = find_slots(terms, accounts)
  resolve(terms, owner, at, held, by_unit(0, 0, 0, 0, 0), lease.epochs, {}, now)
  redis.call('ZREM', KEYS[2], ARGV[1])
  for a = 1, terms.accounts do
    count(accounts[a], 4, held[1], 0)
    write_account(KEYS[2 + a], accounts[a], terms.flat[a], now)
  end
end
-- A reserve of this id that is still on its way must do nothing.
redis.call('SET', KEYS[1], 'X', 'PX', ARGV[2])
return reply(DONE, now, 0)
