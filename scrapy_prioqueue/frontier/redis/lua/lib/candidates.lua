-- The slots from which a worker may be served.

-- The demand, which decreases as it is served.
local asked = {
  limit = 0, later = 0, places = 0, horizon_ms = 0, reserve_ms = 0, slot_limit = 0, room = {}, full = 0, ahead = 2,
  is_exact = false, read_on = 0, must_return = false, has_refused = false, since_ms = 0}

local records = {}

function lib.record_of(slot)
  local record = records[slot]
  if not record then
    record = {name = slot, room = asked.room[slot] or asked.slot_limit, granted = 0}
    records[slot] = record
  end
  return record
end

-- The latest start of a request that is leased ahead of its time, and of one for which a place is reserved.
function lib.horizon_ms() -- policies
  return now_ms + (asked.later > 0 and asked.horizon_ms or 0)
end

function lib.reserved_until_ms() -- policies
  return now_ms + (asked.limit > 0 and asked.reserve_ms or 0)
end

-- Return whether a place may be reserved for a request with this start. A leased request of the slot that still waits
-- will leave its place to this one, unless enough are running to show that pages take longer than the interval.
function lib.may_reserve(record, start_ms) -- policies
  local interval = lib.with_limits().clock_of(record.name).limit.interval
  local waiting = interval > 0 and math.ceil((start_ms - now_ms) / interval) - 1 or 0
  if waiting <= 0 then return true end
  return 2 * waiting < tonumber(redis.call("HGET", key("running"), record.name) or 0) + record.granted
end

-- When the next request of a slot would start; nil if it can't be leased.
function lib.start_of(record)
  if record.room <= 0 then return nil end
  if not policies.has_limits then return asked.limit > 0 and now_ms or nil end
  local start_ms = math.max(now_ms, lib.with_limits().opens_ms(record.name))
  if start_ms == now_ms then return asked.limit > 0 and start_ms or nil end
  if start_ms <= lib.horizon_ms() then return start_ms end
  return start_ms <= lib.reserved_until_ms() and lib.may_reserve(record, start_ms) and start_ms or nil
end

-- Requests that start now and those that start soon share the places.
function lib.take_place(start_ms) -- policies
  asked.places = asked.places - 1
  if start_ms > now_ms then asked.later = asked.later - 1 else asked.limit = asked.limit - 1 end
  asked.limit, asked.later = math.min(asked.limit, asked.places), math.max(0, math.min(asked.later, asked.places))
end

-- Up to `most` slots of a sorted set after a position, with their scores.
local function found_behind(noun, at, slot, most)
  -- A name that would come next marks the position.
  redis.call("ZADD", key(noun), at, slot .. "\0")
  local first = redis.call("ZRANK", key(noun), slot .. "\0")
  redis.call("ZREM", key(noun), slot .. "\0")
  return redis.call("ZRANGE", key(noun), first, first + most - 1, "WITHSCORES")
end

-- After a change of limits check waiting slots, then those served so lately that they may have to wait now, some with
-- each call; `from` is `<waiting or paced> <time> <slot>` of the last one checked. Returns whether there are more.
function lib.look_again(from) -- seldom
  local MOST_SEEN = 100
  local noun, at, slot = string.match(from, "^(%S+) (%S+) (.*)$")
  local left, is_cut = MOST_SEEN, false
  while noun and not is_cut do
    local found = left > 0 and found_behind(noun, at, slot, left) or {}
    for i = 1, #found, 2 do
      lib.try_zset("queue", found[i])
      lib.touch_all(found[i])
    end
    is_cut = #found == 2 * left
    if is_cut and left > 0 then
      at, slot = found[#found], found[#found - 1]
    elseif not is_cut then
      noun, at, slot = noun == "waiting" and "paced" or nil, string.format("%.0f", now_ms), ""
    end
    left = left - #found / 2
  end
  lib.note_undo("HSET", KEYS[1], "reopen", from)
  lib.write_field("state", "reopen", noun and noun .. " " .. at .. " " .. slot)
  return is_cut
end

-- Move waiting slots to their lanes whose time has come.
function lib.open_slots() -- policies
  local MOST_OPENED = 200
  local most = math.floor(MOST_OPENED / #lib.all_lanes())
  local slots = redis.call("ZRANGEBYSCORE", key("waiting"), "-inf", now_ms, "LIMIT", 0, most)
  for _, slot in ipairs(slots) do
    lib.try_zset("queue", slot)
    lib.touch_all(slot)
  end
  lib.write_slots()
end

-- Slots that open soon enough.
function lib.soon_slots()
  local MOST_SOON = 256
  local last_ms = policies.has_limits and math.max(lib.horizon_ms(), lib.reserved_until_ms()) or now_ms
  if last_ms <= now_ms then return {} end
  return redis.call("ZRANGEBYSCORE", key("waiting"), "(" .. now_ms, last_ms, "LIMIT", 0, MOST_SOON)
end
