-- Requests that aren't leased: over budget, undecodable here, or foreign.

-- Give up a request that doesn't fit its budgets; return whether that was so.
function lib.give_up(id, attempts, rank, slot, payload) -- policies
  local name, detail = lib.with_budgets().give_up(payload)
  if not name then return false end
  if granted.unfit == 0 then lib.try_writes(false) end
  lib.bury(id, {attempts = attempts, rank = rank, slot = slot, worker = "", payload = payload}, "budget", detail)
  granted.over[#granted.over + 1], granted.unfit = name, granted.unfit + 1
  return true
end

-- Return whether the worker may be able to decode a request; if not, others get it. Records how often it was refused.
function lib.may_read(id, attempts, rank, slot, payload) -- seldom
  local names = lib.refusals_of(id)
  if not names then return true end
  if lib.set_aside(names, asked.worker, asked.since_ms, id, attempts, rank, slot, payload) then
    granted.aside, granted.unfit = granted.aside + 1, granted.unfit + 1
    return false
  end
  local length = #granted.refusals
  granted.refusals[length + 1], granted.refusals[length + 2] = id, #names
  return true
end

-- Return whether a request is perhaps one that can't be leased.
function lib.may_be_unfit(envelope) -- seldom
  if #envelope < 9 or (asked.has_refused and lib.refusals_of(string.sub(envelope, 1, 8))) then return true end
  return policies.has_budgets and lib.with_budgets().excess(string.sub(envelope, 10)) ~= nil
end

-- Give up an entry that another program has written.
function lib.give_up_foreign(envelope) -- seldom
  lib.bury_foreign(envelope)
  local foreign, length = granted.foreign, #granted.foreign
  granted.unfit = granted.unfit + 1
  foreign[length + 1], foreign[length + 2] = buried[#buried - 1], buried[#buried]
  return false
end
