-- The slots from which a worker may be served; put behind `_floods.lua` at load.

-- What it has asked for, which decreases as it is served.
local asked = {limit = 0, later = 0, horizon_ms = 0, slot_limit = 0, room = {}, full = 0}

local records = {}

function lib.record_of(slot)
  local record = records[slot]
  if not record then
    lib.try_zset("queue", slot)
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

-- Give slots that have waited long enough their places.
function lib.open_slots()
  local MOST_OPENED = 500
  local slots = redis.call("ZRANGEBYSCORE", key("waiting"), "-inf", now_ms, "LIMIT", 0, MOST_OPENED)
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

function lib.goes_before(one, other)
  if one.rank ~= other.rank then return one.rank < other.rank end
  return one.turn < other.turn
end

function lib.add_entries(lane, found, is_soon)
  local list, has_many_lanes = lane.list, lib.all_lanes()[2]
  for i = 1, #found, 2 do
    local member = found[i]
    local record = lib.record_of(string.sub(member, 9))
    if record.room > 0 then
      local entry = has_many_lanes and {} or record
      entry.record, entry.lane, entry.member, entry.rank = record, lane, member, tonumber(found[i + 1])
      entry.is_soon = is_soon
      list[#list + 1] = entry
    end
  end
end

-- Fill the list of a lane, also with slots that open soon: by the rank of their head, then by turn.
function lib.fill(lane, soon)
  lane.list = {}
  lib.add_entries(lane, redis.call("ZRANGE", lane.ready, 0, asked.limit + asked.full - 1, "WITHSCORES"))
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

-- A slot just served goes behind all others whose heads rank equal.
function lib.insert(entry)
  local list, at = entry.lane.list, 1
  while list[at] and list[at].rank <= entry.rank do at = at + 1 end
  table.insert(list, at, entry)
end
