-- Floods: holding discovery back while there are too many requests.

-- In a flood: by tier whether its requests are discovery, and how many of them this call may still lease.
-- `is_at_limit`: nothing is discovered even if nothing can be served. `held`: see `count_held`.
local flood = {is_on = false, is_at_limit = false, held = 0, discovery = {}, allowed = 0}

-- Water marks count requests that can be served soon: those that a slot's rate allows to start within this time. With
-- more positions in lanes than that, the total is estimated.
local SOON_MS, MOST_LOOKED_AT = 60000, 200

-- Maximum age of the count in a flood, and when it decides whether one begins.
local COUNT_LASTS_MS, COUNT_LASTS_AT_MARK_MS = 500, 50

-- Count pending requests of slots that are closed, or too slow to serve them soon.
local function count_held() -- seldom
  local total = redis.call("HLEN", key("turns"))
  local positions = redis.call("HRANDFIELD", key("turns"), MOST_LOOKED_AT)
  local held, limits_now = 0, lib.with_limits()
  for _, member in ipairs(positions) do
    local colon = lib.all_lanes()[1].tier and string.find(member, ":", 1, true)
    local slot = colon and string.sub(member, colon + 1) or member
    local count = redis.call("ZCARD", key("queue", slot))
    local excess = math.max(0, count - limits_now.may_start_within(slot, SOON_MS))
    local lane = colon and lib.all_lanes()[(tonumber(string.sub(member, 1, colon - 1)) or -1) + 1]
    if lane and excess > 0 then
      excess = math.floor(redis.call("ZCOUNT", key("queue", slot), lane.low, lane.high) * excess / count)
    end
    held = held + excess
  end
  return positions[1] and math.floor(held * total / #positions) or 0
end

-- The count, perhaps a recent one; `text` is the last count with its time.
local function held_of(text, was_on, pending, high_water) -- seldom
  if not lib.read_policies().has_limits then return 0 end
  local count, at_ms = string.match(text or "", "^(%d+) (%d+)$")
  local age_ms = at_ms and now_ms - tonumber(at_ms)
  if age_ms and age_ms < COUNT_LASTS_AT_MARK_MS then return tonumber(count) end
  if age_ms and age_ms < COUNT_LASTS_MS and (was_on or pending - tonumber(count) < high_water) then
    return tonumber(count)
  end
  local held = count_held()
  redis.call("HSET", KEYS[1], "flood_held", string.format("%.0f %.0f", held, now_ms))
  return held
end

-- Time without change after which one more discovery may be served: those leased may be slow, or lost.
local PATIENCE_MS = 1000

-- Update the flood. If only discovery is left, one request at a time is served; each that ends without bringing more
-- requests than itself allows one more at the same time, until one brings more.
function lib.look_at_flood(pending, leased) -- seldom
  local is_flooded, high_water, low_water, memory_high, discovery, mark, width, since_ms, pending_limit, last_count
    = unpack(redis.call("HMGET", KEYS[1], "is_flooded", "high_water", "low_water", "memory_high", "discovery",
      "flood_mark", "flood_width", "flood_ms", "pending_limit", "flood_held"))
  local was_on = is_flooded == "1"
  high_water, pending_limit = tonumber(high_water), tonumber(pending_limit)
  flood.is_at_limit = memory_high == "1" or (pending_limit or math.huge) <= pending
  local least = high_water and (was_on and tonumber(low_water) + 1 or high_water) or math.huge
  if pending >= least then flood.held = held_of(last_count, was_on, pending, high_water) end
  flood.is_on = flood.is_at_limit or pending - flood.held >= least
  if not flood.is_on then
    if was_on then redis.call("HDEL", KEYS[1], "is_flooded", "flood_mark", "flood_width", "flood_ms") end
    return
  end
  local left = pending + leased
  mark, width, since_ms = tonumber(mark or left), tonumber(width or 1), tonumber(since_ms or now_ms)
  local is_stuck = left == mark and now_ms - since_ms >= PATIENCE_MS
  width = left > mark and 1 or width + mark - left + (is_stuck and 1 or 0)
  if not was_on or left ~= mark or is_stuck then
    redis.call("HSET", KEYS[1],
      "is_flooded", "1", "flood_mark", left, "flood_width", width, "flood_ms", now_ms)
  end
  for _, tier in ipairs(cjson.decode(discovery or "[]")) do flood.discovery[tier] = true end
  flood.allowed = math.max(0, width - leased)
end
