-- Writes the hold that `take` put into the accounts of one lease: deadline, lease and accounts. ZADD comes first, the only
-- write here that a key of another type refuses.
local function write_hold(seen, terms, blob, held, epochs, dispatched, deadline, checkpoint, now)
  call('ZADD', KEYS[2], deadline, ARGV[1])
  call('SET', KEYS[1], write_lease('L', dispatched, deadline, held, checkpoint, epochs, blob))
  save_all(seen, terms.flat, now)
end
