-- KEYS lease, deadlines, accounts of the new chain..., other accounts of the old one...
-- ARGV id, input/output/nano/hold, terms, windows, mark of the old chain, key index per old account
local now = clock()
local got = redis.call('MGET', KEYS[1], unpack(KEYS, 3))
local state = state_of(got[1])
if not state then return reply(ABSENT, now, 0) end
if state ~= 'L' then return reply(BURIED, now, 0) end
local lease = read_lease(got[1])
local old = read_terms(got[1], lease.terms_at)
if old.mark ~= ARGV[5] then return reply(MOVED, now, 0) .. got[1] end
local terms = read_terms(ARGV[3], 1)
local starts = read_starts(ARGV[4], terms.calendars, now)
if not starts then return reply(STALE, now, 0) end
local accounts = read_accounts(got, 2, #KEYS - 1)

local owner, at = find_slots(old, accounts, ARGV[6])
local held = by_unit(1, lease.held[1], lease.held[2], lease.held[3], 1)
local nothing = by_unit(0, 0, 0, 0, 0)
resolve(old, owner, at, held, nothing, lease.epochs, {}, now)
for a = 1, old.accounts do count(accounts[byte(ARGV[6], a)], 4, held[1], 0) end

local input, output, nano, hold_us = unpack_('<dddd', ARGV[2])
local need = by_unit(1, input, output, nano, 1)
owner, at = find_slots(terms, accounts)
local levels, ats, fits = look(terms, owner, at, need, starts, now)
-- Nothing has been written: the old hold stands.
if not fits then return reply(FULL, now, 0, levels) end
redis.call('ZADD', KEYS[2], now + hold_us, ARGV[1])
local epochs = hold(terms, owner, at, need, levels, ats)
redis.call('SET', KEYS[1], write_lease('L', 0, now + hold_us, { input, output, nano }, { 0, 0, 0, 0 }, epochs, ARGV[3]))
for a = 1, terms.accounts do accounts[a][3] = accounts[a][3] + need[1] end
local keep = {}
for a = 1, old.accounts do keep[byte(ARGV[6], a)] = old.flat[a] end
for a = 1, terms.accounts do keep[a] = terms.flat[a] end
for a = 1, #accounts do write_account(KEYS[2 + a], accounts[a], keep[a], now) end
return reply(DONE, now, 0, levels)
