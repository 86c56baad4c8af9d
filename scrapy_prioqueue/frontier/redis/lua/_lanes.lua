-- Where slots stand in line; put behind `_budgets.lua` at load.

-- A lane is a line of slots by the rank of their head, then by turn. There is one, `ready`, of the best head of each
-- slot; or one for each tier, `ready:<tier>`, with its best request, where the best tier isn't always served first.
-- A slot that may not be served stands in no lane but in `waiting`, under the time at which it may; it keeps its turns.
local TIER_WIDTH, HALF_TIER = 2 ^ 45, 2 ^ 44

local lanes

function lib.all_lanes()
  if lanes then return lanes end
  lanes = {}
  for tier = 0, lib.read_policies().lanes - 1 do
    local first = tier * TIER_WIDTH - HALF_TIER
    local low, high = string.format("(%.0f", first), string.format("(%.0f", first + TIER_WIDTH)
    lanes[tier + 1] = {
      ready = key("ready", tier), prefix = tier .. ":", tier = tier, field = tostring(tier), low = low, high = high}
  end
  if not lanes[1] then lanes[1] = {ready = key("ready"), prefix = ""} end
  return lanes
end

function lib.lane_of(rank)
  local all = lanes or lib.all_lanes()
  if not all[1].tier then return all[1] end
  return all[math.floor((tonumber(rank) + HALF_TIER) / TIER_WIDTH) + 1]
end

function lib.packed(number)
  return struct.pack(">I8", number)
end

-- {envelope, rank} of the best request of a slot in a lane, empty if there is none.
function lib.head_of(slot, lane)
  if lane.tier then
    return redis.call("ZRANGEBYSCORE", key("queue", slot), lane.low, lane.high, "WITHSCORES", "LIMIT", 0, 1)
  end
  return redis.call("ZRANGE", key("queue", slot), 0, 0, "WITHSCORES")
end

-- Places that this script has changed, in that order: slots and lanes in turn. `write_slots` brings lanes and turns in
-- line with the queues.
local touched, is_touched = {}, {}

function lib.touch_place(slot, lane)
  local place = lane.prefix .. slot
  if not is_touched[place] then
    is_touched[place] = true
    local length = #touched
    touched[length + 1], touched[length + 2] = slot, lane
  end
end

function lib.touch(slot, rank)
  lib.touch_place(slot, lib.lane_of(rank))
end

function lib.touch_all(slot)
  for _, lane in ipairs(lib.all_lanes()) do lib.touch_place(slot, lane) end
end

-- Returns whether something is there.
function lib.write_place(slot, lane, is_open)
  local head, turn = lib.head_of(slot, lane), redis.call("HGET", key("turns"), lane.prefix .. slot)
  if not head[1] then
    if turn then
      redis.call("ZREM", lane.ready, turn .. slot)
      redis.call("HDEL", key("turns"), lane.prefix .. slot)
    end
    return false
  end
  if not turn then
    turn = lib.packed(redis.call("HINCRBY", KEYS[1], "turn", 1))
    redis.call("HSET", key("turns"), lane.prefix .. slot, turn)
  end
  if is_open then
    redis.call("ZADD", lane.ready, head[2], turn .. slot)
  else
    redis.call("ZREM", lane.ready, turn .. slot)
  end
  return true
end

-- As `write_slots`, where slots may have to wait: one that has opened has its places in all lanes again, one that has
-- closed in none.
function lib.write_limited_slots()
  local opens, was_waiting, has_requests, has_opened = {}, {}, {}, false
  for i = 1, #touched, 2 do
    local slot = touched[i]
    if not opens[slot] then
      opens[slot] = lib.with_limits().opens_ms(slot)
      was_waiting[slot] = redis.call("ZSCORE", key("waiting"), slot) and true or false
      if was_waiting[slot] ~= (opens[slot] > now_ms) then lib.touch_all(slot) end
    end
  end
  for i = 1, #touched, 2 do
    local slot = touched[i]
    local is_found = lib.write_place(slot, touched[i + 1], opens[slot] <= now_ms)
    has_requests[slot] = has_requests[slot] or is_found
  end
  for slot, at in pairs(opens) do
    if at > now_ms and (has_requests[slot] or redis.call("EXISTS", key("queue", slot)) == 1) then
      redis.call("ZADD", key("waiting"), at, slot)
    elseif was_waiting[slot] then
      redis.call("ZREM", key("waiting"), slot)
      has_opened = has_opened or has_requests[slot]
    end
  end
  return has_opened
end

-- Returns whether a slot that had to wait may be served now.
function lib.write_slots()
  local has_opened = false
  if lib.read_policies().has_limits then
    has_opened = lib.write_limited_slots()
    lib.with_limits().write()
  else
    for i = 1, #touched, 2 do lib.write_place(touched[i], touched[i + 1], true) end
  end
  touched, is_touched = {}, {}
  return has_opened
end

-- After a change of lanes slots are put into theirs, so many at a time, in the order of their turns.
function lib.sort_slots()
  local MOST_SORTED = 500
  redis.call("ZREM", key("unsorted"), "")
  local members = redis.call("ZRANGE", key("unsorted"), 0, MOST_SORTED - 1)
  for _, member in ipairs(members) do
    lib.touch_all(string.sub(member, 9))
    redis.call("ZREM", key("unsorted"), member)
  end
  lib.write_slots()
  if #members < MOST_SORTED then redis.call("HDEL", KEYS[1], "unsorted") end
end
