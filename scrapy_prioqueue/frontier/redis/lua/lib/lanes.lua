-- Lanes of slots.

-- A lane sorts slots by the rank of their head, then by turn. There is one, `ready`, with the best request of each
-- slot; or one for each tier, `ready:<tier>`, with the best of that tier, if the best tier isn't always served first. A
-- slot that may not be served is in `waiting` instead, under the time at which it opens; it keeps its turns.
local TIER_WIDTH, HALF_TIER = 2 ^ 45, 2 ^ 44

local lanes

function lib.tier_of(rank)
  return math.floor((tonumber(rank) + HALF_TIER) / TIER_WIDTH)
end

function lib.all_lanes()
  if lanes then return lanes end
  lanes = {}
  for tier = 0, lib.read_policies().lanes - 1 do
    local first = tier * TIER_WIDTH - HALF_TIER
    local low = tier == 0 and "-inf" or string.format("(%.0f", first)
    local high = tier == policies.lanes - 1 and "+inf" or string.format("(%.0f", first + TIER_WIDTH)
    lanes[tier + 1] = {
      ready = key("ready", tier), prefix = tier .. ":", tier = tier, field = tostring(tier), low = low, high = high}
  end
  if not lanes[1] then lanes[1] = {ready = key("ready"), prefix = ""} end
  return lanes
end

-- Ranks of tiers that this crawl doesn't have, from a worker with other tiers, belong to the first or the last lane.
function lib.lane_of(rank)
  local all = lanes or lib.all_lanes()
  if not all[1].tier then return all[1] end
  local tier = lib.tier_of(rank)
  return all[math.max(0, math.min(tier, #all - 1)) + 1]
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

-- Ranks by their text, since many are equal.
local ranks = {}

function lib.rank_of(text)
  local rank = ranks[text]
  if not rank then
    rank = tonumber(text)
    ranks[text] = rank
  end
  return rank
end
