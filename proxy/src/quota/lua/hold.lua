-- Brings every limit of the chain forward to `now` and adds `need`, in tables only: nothing is written. Returns whether
-- it fits, the levels, and what `hold` needs: accounts with heads and counts, and the window of each calendar limit.
local function look(strings, terms, need, starts, now)
  local flat, fits, levels, epochs = terms.flat, true, {}, {}
  local seen, t, c, i = load_all(strings, terms, now), terms.accounts, 0, 0
  for a = 1, terms.accounts do
    local account = seen.accounts[a]
    for j = 6, 4 + 2 * seen.owns[a], 2 do
      local kind, level, at, ceiling, rate = flat[t + 1], account[j], account[j + 1], flat[t + 3], flat[t + 4]
      if kind == BUCKET then
        if at == 0 then
          at = now
        elseif now > at then
          level = level - (now - at) * rate
          if level < 0 then level = 0 end
          at = now
        end
      elseif kind == CALENDAR then
        c = c + 1
        local start = starts[c]
        if at == 0 then
          at = start
        elseif start > at then
          level = max(0, level - max(1, floor((start - at) / rate + 0.5)) * ceiling)
          at = start
        end
        epochs[c] = at
      end
      local wanted = need[flat[t + 2]]
      local after = level + wanted
      if wanted ~= 0 and after > ceiling then fits = false end
      account[j], account[j + 1], i, t = after, at, i + 1, t + 4
      levels[i] = after
    end
  end
  seen.epochs = epochs
  return fits, levels, seen
end

-- Writes a hold that `look` saw fit: deadline, lease and accounts. ZADD comes first, the only write here that a key of
-- another type refuses.
local function hold(seen, terms, blob, held, need, dispatched, deadline, checkpoint, now)
  call('ZADD', KEYS[2], deadline, ARGV[1])
  call('SET', KEYS[1], write_lease('L', dispatched, deadline, held, checkpoint, seen.epochs, blob))
  for a = 1, terms.accounts do seen.accounts[a][2] = seen.accounts[a][2] + need[1] end
  save_all(seen, terms.flat, now)
end

local NOTHING = by_unit(0, 0, 0, 0, 0)
