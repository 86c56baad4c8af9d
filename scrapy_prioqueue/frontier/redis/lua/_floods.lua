-- What becomes of discovery where there is too much to do already; put behind `_moves.lua` at load.

-- While it is on: by tier whether its requests discover, and how many of them this call may hand out nevertheless.
local flood = {is_on = false, discovery = {}, allowed = 0}

function lib.is_flooded(pending, was_on, high_water, low_water, memory_high)
  if memory_high then return true end
  if not high_water then return false end
  return pending >= high_water or (was_on and pending > low_water)
end

-- Look whether the crawl is flooded. If nothing else is left, discovery goes on as long as the number falls, and one
-- request at a time where it doesn't.
function lib.look_at_flood(pending, leased)
  local names = {"is_flooded", "high_water", "low_water", "memory_high", "flood_mark", "discovery"}
  local found = redis.call("HMGET", KEYS[1], unpack(names))
  local was_on, mark = found[1] == "1", tonumber(found[5] or pending)
  flood.is_on = lib.is_flooded(pending, was_on, tonumber(found[2]), tonumber(found[3] or 0), found[4] == "1")
  if not flood.is_on then
    if was_on then redis.call("HDEL", KEYS[1], "is_flooded", "flood_mark") end
    return
  end
  if not was_on or pending < mark then
    redis.call("HSET", KEYS[1], "is_flooded", "1", "flood_mark", pending)
    mark = pending
  end
  for _, tier in ipairs(cjson.decode(found[6] or "[]")) do flood.discovery[tier] = true end
  flood.allowed = pending <= mark and math.huge or (leased == 0 and 1 or 0)
end
