-- How the policy of a worker that joins takes effect; put behind `_crawls.lua` at load.

-- Write entries of settings into `limits` or `budgets`; those of operators (`!`) stay.
-- Where these are many, the rest is dropped in the background, as a whole.
local MOST_DROPPED = 1000

function lib.write_entries(noun, entries)
  local gone, said, ordered = {}, {}, {}
  for _, field in ipairs(redis.call("HKEYS", key(noun))) do
    local list = string.sub(field, 1, 1) == "!" and ordered or gone
    list[#list + 1] = field
  end
  for field, entry in pairs(entries) do said[#said + 1], said[#said + 2] = field, cjson.encode(entry) end
  if #gone <= MOST_DROPPED then
    lib.call_with_all("HDEL", key(noun), gone)
  else
    for _, field in ipairs(ordered) do
      said[#said + 1], said[#said + 2] = field, redis.call("HGET", key(noun), field)
    end
    redis.call("UNLINK", key(noun))
  end
  lib.call_with_all("HSET", key(noun), said)
end

-- Slots that wait keep their turns where they are no more than that; others join the turns anew.
local MOST_WAITING = 500

-- A name for slots that are to be put into other lanes, behind those of earlier changes; see `unsorted_key`.
local function next_unsorted()
  return lib.name_of_unsorted(redis.call("HINCRBY", KEYS[1], "unsorted", 1))
end

local function set_waiting_aside(lane)
  local waiting, places, members = redis.call("ZRANGE", key("waiting"), 0, MOST_WAITING - 1), {}, {}
  if not waiting[1] then return end
  for i, slot in ipairs(waiting) do places[i] = lane.prefix .. slot end
  for i, turn_text in ipairs(redis.call("HMGET", key("turns"), unpack(places))) do
    if turn_text then members[#members + 1], members[#members + 2] = 0, turn_text .. waiting[i] end
  end
  if members[1] then lib.call_with_all("ZADD", next_unsorted(), members) end
end

-- Where lanes change, slots are put into their new ones by `sort` and the exchanges that follow, each with its turn.
-- Whatever their number, the lanes are only renamed here.
function lib.change_lanes(lanes_now)
  if lanes_now == lib.read_policies().lanes then return end
  local before = lib.all_lanes()
  for i = #before, 1, -1 do
    set_waiting_aside(before[i])
    if redis.call("EXISTS", before[i].ready) == 1 then redis.call("RENAME", before[i].ready, next_unsorted()) end
  end
  redis.call("UNLINK", key("turns"))
  lib.write_field("state", "lanes", lanes_now > 0 and lanes_now)
  policies, lanes = nil, nil
end

-- The policy of the worker that has joined last counts; once there are limits or budgets, they are kept account of.
function lib.apply_policy(digest, text)
  if redis.call("HGET", KEYS[1], "policy") == digest then return end
  local policy = cjson.decode(text)
  lib.write_entries("limits", policy.slots)
  lib.write_entries("budgets", policy.budgets or {})
  lib.change_lanes(policy.lanes)
  local has_marks = policy.high_water or policy.pending_limit or policy.has_memory_mark
  lib.write_field("state", "has_marks", has_marks and "1")
  for _, field in ipairs({"high_water", "low_water", "pending_limit"}) do
    lib.write_field("state", field, policy[field])
  end
  for _, field in ipairs({"throttle", "weights", "discovery"}) do
    lib.write_field("state", field, policy[field] and cjson.encode(policy[field]))
  end
  if not policy.has_memory_mark then redis.call("HDEL", KEYS[1], "memory_high") end
  if not has_marks then
    redis.call("HDEL", KEYS[1], "is_flooded", "flood_mark", "flood_width", "flood_ms", "flood_held")
  end
  policies = nil
  if policy.budgets then lib.with_budgets().enable() end
  lib.write_field("state", "awaits_delays", policy.awaits_delays and "1")
  policies = nil
  if next(policy.slots) or policy.throttle or policy.awaits_delays then lib.with_limits().enable() end
  if lib.read_policies().has_limits then
    lib.with_limits().refresh()
    lib.with_limits().set_end()
  end
  -- Last, so that one of which a part was refused isn't taken for applied.
  redis.call("HSET", KEYS[1], "policy", digest)
end
