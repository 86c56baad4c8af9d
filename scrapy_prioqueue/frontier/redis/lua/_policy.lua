-- How the policy of a worker that joins takes effect; put behind `_crawls.lua` at load.

-- Write entries of settings into `limits` or `budgets`; those of operators (`!`) stay.
function lib.write_entries(noun, entries)
  for _, field in ipairs(redis.call("HKEYS", key(noun))) do
    if string.sub(field, 1, 1) ~= "!" then redis.call("HDEL", key(noun), field) end
  end
  for field, entry in pairs(entries) do redis.call("HSET", key(noun), field, cjson.encode(entry)) end
end

-- More slots that wait than that join the turns anew.
local MOST_WAITING = 10000

-- Where lanes change, slots are put into their new ones by the exchanges that follow, in the order of their turns.
function lib.change_lanes(lanes_now)
  if lanes_now == lib.read_policies().lanes then return end
  local waiting = redis.call("ZRANGE", key("waiting"), 0, MOST_WAITING - 1)
  for _, lane in ipairs(lib.all_lanes()) do
    redis.call("ZUNIONSTORE", key("unsorted"), 2, key("unsorted"), lane.ready, "WEIGHTS", 0, 0)
    redis.call("DEL", lane.ready)
    for _, slot in ipairs(waiting) do
      local earlier = redis.call("HGET", key("turns"), lane.prefix .. slot)
      if earlier then redis.call("ZADD", key("unsorted"), 0, earlier .. slot) end
    end
  end
  redis.call("UNLINK", key("turns"))
  lib.write_field("state", "lanes", lanes_now > 0 and lanes_now)
  lib.write_field("state", "unsorted", redis.call("EXISTS", key("unsorted")) == 1 and "1")
  policies, lanes = nil, nil
  if redis.call("HGET", KEYS[1], "unsorted") then lib.sort_slots() end
end

-- The policy of the worker that has joined last counts; once there are limits or budgets, they are kept account of.
function lib.apply_policy(text)
  if redis.call("HGET", KEYS[1], "policy") == text then return end
  local policy = cjson.decode(text)
  redis.call("HSET", KEYS[1], "policy", text)
  lib.write_entries("limits", policy.slots)
  lib.write_entries("budgets", policy.budgets or {})
  lib.change_lanes(policy.lanes)
  lib.write_field("state", "has_marks", (policy.high_water or policy.has_memory_mark) and "1")
  for _, field in ipairs({"high_water", "low_water"}) do lib.write_field("state", field, policy[field]) end
  for _, field in ipairs({"throttle", "weights", "discovery"}) do
    lib.write_field("state", field, policy[field] and cjson.encode(policy[field]))
  end
  if not policy.has_memory_mark then redis.call("HDEL", KEYS[1], "memory_high") end
  if not (policy.high_water or policy.has_memory_mark) then
    redis.call("HDEL", KEYS[1], "is_flooded", "flood_mark", "flood_width", "flood_ms")
  end
  policies = nil
  if policy.budgets then lib.with_budgets().enable() end
  lib.write_field("state", "awaits_delays", policy.awaits_delays and "1")
  policies = nil
  if next(policy.slots) or policy.throttle or policy.awaits_delays then lib.with_limits().enable() end
  if lib.read_policies().has_limits then lib.with_limits().refresh() end
end
