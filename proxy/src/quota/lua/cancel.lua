-- KEYS lease, deadlines, account...  ARGV id, milliseconds to forbid the id, mark of the chain
local now = clock()
local record = call('GET', KEYS[1])
local state = state_of(record)
if state == 'E' then return reply(BURIED, now, 0) end
if state == 'L' then
  local lease = read_lease(record)
  local terms = read_terms(record, lease.terms_at)
  if mark_of(terms) ~= ARGV[3] then return reply(MOVED, now, 0) .. record end
  local held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
  local seen = load_all(read_accounts(), terms, now)
  resolve(seen, terms, held, by_unit(0, 0, 0, 0, 0), lease.epochs, {}, now, 3, false)
  call('ZREM', KEYS[2], ARGV[1])
  save_all(seen, terms.flat, now)
end
-- A reserve of this id that is still on its way must do nothing.
call('SET', KEYS[1], 'X', 'PX', ARGV[2])
return reply(DONE, now, 0)
