-- Counting leases that are older than limits or budgets.

-- The field `counting` of the state has the cursor of `HSCAN` for each of both that is counting: {"limits": cursor}.
-- Nothing is leased until it is done. `counted:<which>` has the ids of leases that are counted.
local MOST_COUNTED = 200

local function write_counting(counting)
  local before = redis.call("HGET", KEYS[1], "counting")
  policies.counting = next(counting) and counting or nil
  if before then lib.note_undo("HSET", KEYS[1], "counting", before) end
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
      lib.note_undo("SREM", key("counted", which), values[i])
      -- Skip the byte that begins the array; the payload isn't read if it isn't needed.
      if which == "limits" then
        lib.with_limits().add(select(4, cmsgpack.unpack_limit(values[i + 1], 3, 1)))
      else
        lib.with_budgets().hold(select(6, cmsgpack.unpack_limit(values[i + 1], 5, 1)), 1)
      end
    end
  end
  return found ~= "0" and found or nil
end

-- Count some leases if counting is in progress; return whether it still is.
function lib.count_leases() -- seldom
  local counting, done = lib.read_policies().counting, {}
  for _, which in ipairs({"limits", "budgets"}) do
    if counting[which] then
      counting[which] = count_some(which, counting[which])
      if not counting[which] then done[#done + 1] = key("counted", which) end
    end
  end
  lib.with_limits().write()
  lib.with_budgets().write()
  write_counting(counting)
  -- Dropped last, since a count that failed continues with these.
  if done[1] then redis.pcall("UNLINK", unpack(done)) end
  return policies.counting ~= nil
end

-- Note that limits and budgets have counted a new lease.
function lib.begin_counted(id)
  for which in pairs(lib.read_policies().counting or {}) do redis.call("SADD", key("counted", which), id) end
end

-- End a lease: reserve its budgets if that isn't done yet. Returns whether limits have counted it.
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
