-- The slots from which a worker may be served; put behind `_floods.lua` at load.

-- What it has asked for, which decreases as it is served.
local asked = {limit = 0, later = 0, horizon_ms = 0, slot_limit = 0, room = {}, full = 0, ahead = 2}

local records = {}

function lib.record_of(slot)
  local record = records[slot]
  if not record then
    record = {name = slot, room = asked.room[slot] or asked.slot_limit}
    records[slot] = record
  end
  return record
end

-- When the next request of a slot would start; nil if it can't be had.
function lib.start_of(record)
  if record.room <= 0 then return nil end
  if not policies.has_limits then return asked.limit > 0 and now_ms or nil end
  local start_ms = math.max(now_ms, lib.with_limits().opens_ms(record.name))
  if start_ms == now_ms then return asked.limit > 0 and start_ms or nil end
  return asked.later > 0 and start_ms <= now_ms + asked.horizon_ms and start_ms or nil
end

-- After a change of limits look at slots that wait, so many with each call; `from` is `<time> <slot>` of the one that
-- was looked at last. Returns whether there are more.
function lib.look_again(from) -- seldom
  local MOST_SEEN = 100
  local at, slot = string.match(from, "^(%S+) (.*)$")
  -- The first one behind it is where a name would be that comes next to it.
  redis.call("ZADD", key("waiting"), at, slot .. "\0")
  local first = redis.call("ZRANK", key("waiting"), slot .. "\0")
  redis.call("ZREM", key("waiting"), slot .. "\0")
  local found = redis.call("ZRANGE", key("waiting"), first, first + MOST_SEEN - 1, "WITHSCORES")
  for i = 1, #found, 2 do
    lib.try_zset("queue", found[i])
    lib.touch_all(found[i])
  end
  local has_more = #found == 2 * MOST_SEEN
  lib.write_field("state", "reopen", has_more and found[#found] .. " " .. found[#found - 1])
  return has_more
end

-- Give slots that have waited long enough their places.
function lib.open_slots() -- seldom
  local MOST_OPENED = 200
  local most = math.floor(MOST_OPENED / #lib.all_lanes())
  local slots = redis.call("ZRANGEBYSCORE", key("waiting"), "-inf", now_ms, "LIMIT", 0, most)
  for _, slot in ipairs(slots) do
    lib.try_zset("queue", slot)
    lib.touch_all(slot)
  end
  lib.write_slots()
end

-- Slots that open within the horizon.
function lib.soon_slots()
  local MOST_SOON = 256
  if not policies.has_limits or asked.later <= 0 then return {} end
  local last_ms = now_ms + asked.horizon_ms
  return redis.call("ZRANGEBYSCORE", key("waiting"), "(" .. now_ms, last_ms, "LIMIT", 0, MOST_SOON)
end

-- Read some requests of a slot in its lane, behind those that this script has taken already.
function lib.read_ahead(entry)
  local lane, queue, first = entry.lane, key("queue", entry.record.name), #entry.taken
  if lane.tier then
    entry.heads = redis.call(
      "ZRANGEBYSCORE", queue, lane.low, lane.high, "WITHSCORES", "LIMIT", first, asked.ahead)
  else
    entry.heads = redis.call("ZRANGE", queue, first, first + asked.ahead - 1, "WITHSCORES")
  end
  -- Other lanes read so many as suits them.
  entry.at, entry.is_cut = 1, #entry.heads == 2 * asked.ahead
end

-- The next request of a slot in its lane; nil if there is none. Its rank, as it was read, is behind it in `heads`.
-- `take_next` goes on to the one behind it.
function lib.next_of(entry)
  if entry.at > #entry.heads and entry.is_cut then lib.read_ahead(entry) end
  return entry.heads[entry.at]
end

function lib.take_next(entry)
  entry.taken[#entry.taken + 1] = entry.heads[entry.at]
  entry.at = entry.at + 2
end

function lib.goes_before(one, other) -- seldom
  if one.rank ~= other.rank then return one.rank < other.rank end
  return one.turn < other.turn
end

function lib.add_entries(lane, found, is_soon)
  local list = lane.list
  for i = 1, #found, 2 do
    local member = found[i]
    local record = lib.record_of(string.sub(member, 9))
    if record.room > 0 then
      -- Tables that begin with all their fields need not grow.
      local entry = {
        record = record, lane = lane, member = member, rank = lib.rank_of(found[i + 1]), is_soon = is_soon, taken = {},
        heads = false, at = 1, is_cut = false, turn = false}
      lib.read_ahead(entry)
      list[#list + 1] = entry
    end
  end
end

local MOST_AHEAD = 64

-- Fill the list of a lane, also with slots that open soon: by the rank of their head, then by turn.
function lib.fill(lane, soon)
  lane.list = {}
  local first = redis.call("ZRANGE", lane.ready, 0, asked.limit + asked.full - 1, "WITHSCORES")
  -- Where there are fewer slots than requests are wanted, more of each are likely to be taken, and one is looked at.
  asked.ahead = 1 + math.min(MOST_AHEAD, math.ceil((asked.limit + asked.later) / math.max(1, #first / 2)))
  lib.add_entries(lane, first)
  if not soon[1] then return end
  for _, slot in ipairs(soon) do
    local head, turn = lib.head_of(slot, lane), redis.call("HGET", key("turns"), lane.prefix .. slot)
    if head[1] and turn then lib.add_entries(lane, {turn .. slot, head[2]}, true) end
  end
  for _, entry in ipairs(lane.list) do entry.turn = struct.unpack(">I8", entry.member) end
  table.sort(lane.list, lib.goes_before)
end

-- The first slot of a lane that can be had, and when its request would start.
function lib.first_of(lane)
  local list = lane.list
  while list[1] do
    local start_ms = lib.start_of(list[1].record)
    if start_ms then return list[1], start_ms end
    local slot = list[1].record.name
    -- Its limit may have become tighter since it was put there.
    if not lib.may_be_served(slot) then lib.touch_all(slot) end
    table.remove(list, 1)
  end
  return nil
end
