-- KEYS deadlines  ARGV most ids. Ids of leases past their deadline on the store's clock, earliest first.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
