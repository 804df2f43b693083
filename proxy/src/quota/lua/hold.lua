-- Brings every limit of the chain forward to `now` and asks whether `need` fits on top. Changes no account: one that is
-- refused stays as it was, to the last bit. Returns that, what `take` puts into the accounts, and the levels without `need`.
local function look(seen, terms, need, starts, now)
  local flat, fits, after, ats, before, epochs = terms.flat, true, {}, {}, {}, {}
  local t, c, i = terms.accounts, 0, 0
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
        ceiling = starts.most[c]
      end
      local wanted = need[flat[t + 2]]
      local total = level + wanted
      if wanted ~= 0 and total > ceiling then fits = false end
      i, t = i + 1, t + 4
      after[i], ats[i], before[i] = total, at, level
    end
  end
  return fits, { levels = after, ats = ats, epochs = epochs }, before
end

-- Puts a hold that `look` saw fit into the accounts, in tables only.
local function take(seen, hold, tokens)
  local levels, ats, i = hold.levels, hold.ats, 0
  for a = 1, #seen.accounts do
    local account = seen.accounts[a]
    account[2] = account[2] + tokens
    for j = 6, 4 + 2 * seen.owns[a], 2 do
      i = i + 1
      account[j], account[j + 1] = levels[i], ats[i]
    end
  end
end

local NOTHING = by_unit(0, 0, 0, 0, 0)
