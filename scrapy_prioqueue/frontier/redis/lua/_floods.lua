-- What becomes of discovery where there is too much to do already; put behind `_moves.lua` at load.

-- While it is on: by tier whether its requests discover, and how many of them this call may hand out nevertheless.
local flood = {is_on = false, discovery = {}, allowed = 0}

function lib.is_flooded(pending, was_on, high_water, low_water, memory_high) -- seldom
  if memory_high then return true end
  if not high_water then return false end
  return pending >= high_water or (was_on and pending > low_water)
end

-- After so long without any change one more may go on: those that are out may be slow, or their workers lost.
local PATIENCE_MS = 1000

-- Look whether the crawl is flooded. If nothing else is left, discovery goes on with one request at a time; each that
-- ends without bringing more than itself lets one more go on beside it, until one does.
function lib.look_at_flood(pending, leased) -- seldom
  local names = {"is_flooded", "high_water", "low_water", "memory_high", "discovery", "flood_mark", "flood_width",
    "flood_ms"}
  local found = redis.call("HMGET", KEYS[1], unpack(names))
  local was_on = found[1] == "1"
  flood.is_on = lib.is_flooded(pending, was_on, tonumber(found[2]), tonumber(found[3] or 0), found[4] == "1")
  if not flood.is_on then
    if was_on then redis.call("HDEL", KEYS[1], "is_flooded", "flood_mark", "flood_width", "flood_ms") end
    return
  end
  local left = pending + leased
  local mark, width, since_ms = tonumber(found[6] or left), tonumber(found[7] or 1), tonumber(found[8] or now_ms)
  local is_stuck = left == mark and now_ms - since_ms >= PATIENCE_MS
  width = left > mark and 1 or width + mark - left + (is_stuck and 1 or 0)
  if not was_on or left ~= mark or is_stuck then
    redis.call("HSET", KEYS[1],
      "is_flooded", "1", "flood_mark", left, "flood_width", width, "flood_ms", now_ms)
  end
  for _, tier in ipairs(cjson.decode(found[5] or "[]")) do flood.discovery[tier] = true end
  flood.allowed = math.max(0, width - leased)
end
