-- Replaces `held` by `actual` in every account of the chain, in tables only.
-- See Slot::resolved and Totals::resolve; `slot` is 3 for settled, 5 for expired.
local function resolve(seen, terms, held, actual, epochs, starts, now, slot, late)
  local flat, tokens = terms.flat, actual[1] - held[1]
  local t, c = terms.accounts, 0
  for a = 1, terms.accounts do
    local account = seen.accounts[a]
    for j = 6, 4 + 2 * seen.owns[a], 2 do
      local kind, unit = flat[t + 1], flat[t + 2]
      local change, level, at, start = actual[unit] - held[unit], account[j], account[j + 1], nil
      if kind == CALENDAR then c = c + 1; start = starts[c] end
      if change > 0 then
        local ceiling, rate, pays = flat[t + 3], flat[t + 4], 0
        if kind == BUCKET then
          if at == 0 then at = now elseif now > at then level, at = max(0, level - (now - at) * rate), now end
          if rate > 0 then pays = (level + change) / rate end
        elseif start then
          if at == 0 then
            at = start
          elseif start > at then
            level, at = max(0, level - max(1, floor((start - at) / rate + 0.5)) * ceiling), start
          end
          if ceiling > 0 then pays = ((level + change) / ceiling + 1) * rate end
        end
        account[j], account[j + 1] = level + change, at
        -- Debt outlives the idle time of its account; the next save sets the key's expiry to it.
        if pays > flat[a] - GRACE and flat[a] > 0 then flat[a] = pays + GRACE end
      elseif change < 0 and (kind ~= CALENDAR or epochs[c] == at) then
        level = level + change
        if level < 0 then level = 0 end
        account[j] = level
      end
      t = t + 4
    end
    if tokens > 0 then account[2] = account[2] + tokens else account[4] = account[4] - tokens end
    if not late then
      account[slot] = account[slot] + actual[1]
    elseif tokens > 0 then
      account[3] = account[3] + tokens
    else
      account[2] = account[2] - tokens
    end
  end
end

-- What a settle replaces: the hold, or what the expiry of the lease has charged already.
local function charged_before(lease, late)
  local charged, hold = lease.checkpoint, lease.held
  if late then return by_unit(charged[1], charged[2], charged[3], charged[4], 0) end
  return by_unit(1, hold[1], hold[2], hold[3], 1)
end
