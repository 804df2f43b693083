-- KEYS of one queue  ARGV ranks, rank, tenant, tokens. A call that had its turn here used so many more than it held.
local q, rank, tenant = queue_at(1, tonumber(ARGV[1])), tonumber(ARGV[2]), ARGV[3]
local change = unpack_('<d', ARGV[4])
-- One that is in neither is ahead of nobody, and is less so now.
for _, key in ipairs({ q.waiting[rank], q.idle[rank] }) do
  if call('ZSCORE', key, tenant) then
    call('ZINCRBY', key, change, tenant)
    break
  end
end
return reply(DONE, clock(), 0)
