-- How leases are counted that were there before limits or budgets; put behind `_budgets.lua` at load.

-- The field `counting` of the state says which of both are at it, and where `HSCAN` goes on: {"limits": cursor}. Until
-- the end nothing is handed out. `counted:<which>` has the ids of leases that are counted, or began counted.
local MOST_COUNTED = 200

local function write_counting(counting)
  policies.counting = next(counting) and counting or nil
  lib.write_field("state", "counting", policies.counting and cjson.encode(counting))
end

function lib.begin_count(which) -- seldom
  local counting = lib.read_policies().counting or {}
  counting[which] = "0"
  redis.call("UNLINK", key("counted", which))
  write_counting(counting)
  lib.count_leases()
end

local function count_some(which, cursor)
  local found, values = unpack(redis.call("HSCAN", key("leased"), cursor, "COUNT", MOST_COUNTED))
  for i = 1, #values, 2 do
    if redis.call("SADD", key("counted", which), values[i]) == 1 then
      -- Behind the byte that begins the array; the payload is left as it is where it has no say.
      if which == "limits" then
        lib.with_limits().add(select(4, cmsgpack.unpack_limit(values[i + 1], 3, 1)))
      else
        lib.with_budgets().hold(select(6, cmsgpack.unpack_limit(values[i + 1], 5, 1)), 1)
      end
    end
  end
  if found ~= "0" then return found end
  redis.call("UNLINK", key("counted", which))
  return nil
end

-- Count so many leases, if that is going on; returns whether it still is.
function lib.count_leases() -- seldom
  local counting = lib.read_policies().counting
  for _, which in ipairs({"limits", "budgets"}) do
    if counting[which] then counting[which] = count_some(which, counting[which]) end
  end
  write_counting(counting)
  lib.with_limits().write()
  lib.with_budgets().write()
  return policies.counting ~= nil
end

-- A lease has begun that limits and budgets know of.
function lib.begin_counted(id)
  for which in pairs(lib.read_policies().counting or {}) do redis.call("SADD", key("counted", which), id) end
end

-- A lease ends: what it has used is held if that was not yet done. Returns whether limits know of it.
function lib.end_counted(id, lease) -- seldom
  local counting = lib.read_policies().counting
  if counting.budgets and redis.call("SREM", key("counted", "budgets"), id) == 0 then
    lib.with_budgets().hold(lease.payload, 1)
  end
  return not counting.limits or redis.call("SREM", key("counted", "limits"), id) == 1
end

-- Writes without effect.
function lib.try_counting() -- seldom
  redis.call("HSCAN", key("leased"), 0, "COUNT", 1)
  for which in pairs(lib.read_policies().counting) do
    redis.call("SADD", key("counted", which), NOBODY)
    redis.call("SREM", key("counted", which), NOBODY)
  end
end
