-- KEYS gateways  ARGV name, microseconds a name counts after its last beat. Writes, so that a server that takes no
-- writes is not taken for healthy. How many gateways beat lately.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000))
return redis.call('ZCARD', KEYS[1])
