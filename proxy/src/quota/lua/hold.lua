-- Brings every limit of the chain forward to `now` and adds `need`, in tables only: nothing is written. Returns whether
-- it fits, the levels, the accounts with heads and counts, and the window of each calendar limit.
local function look(strings, terms, need, starts, now)
  local flat, blob, fits, c, i = terms.flat, terms.blob, true, 0, 0
  local levels, accounts, heads, counts, epochs = {}, {}, {}, {}, {}
  local t, id = terms.accounts, terms.ids
  for a = 1, terms.accounts do
    local own = byte(blob, terms.o + 12 + a)
    local account
    account, heads[a], counts[a] = load(strings[a], own, sub(blob, id, id + 8 * own - 1))
    accounts[a], id = account, id + 8 * own
    for j = 6, 4 + 2 * own, 2 do
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
  return fits, levels, accounts, heads, counts, epochs
end

local NOTHING = by_unit(0, 0, 0, 0, 0)
