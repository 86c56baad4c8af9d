-- The slots from which a worker may be served; put behind `_floods.lua` at load.

-- What it has asked for, which decreases as it is served.
local asked = {limit = 0, later = 0, horizon_ms = 0, slot_limit = 0, room = {}, full = 0}

local PROMOTED, SOON = 500, 256

local records = {}

local function record_of(slot)
  local record = records[slot]
  if not record then
    try_zset("queue", slot)
    record = {name = slot, room = asked.room[slot] or asked.slot_limit}
    records[slot] = record
  end
  return record
end

-- When the next request of a slot would start; nil if it can't be had.
local function start_of(record)
  if record.room <= 0 then return nil end
  local start_ms = now_ms
  if read_policies().has_limits then
    record.clock = record.clock or clock_of(record.name)
    start_ms = math.max(now_ms, opens_ms(record.clock))
  end
  if start_ms == now_ms then return asked.limit > 0 and start_ms or nil end
  return asked.later > 0 and start_ms <= now_ms + asked.horizon_ms and start_ms or nil
end

-- Give slots that have waited long enough their places.
local function promote_waiting()
  local slots = redis.call("ZRANGEBYSCORE", key("waiting"), "-inf", now_ms, "LIMIT", 0, PROMOTED)
  for _, slot in ipairs(slots) do
    try_zset("queue", slot)
    touch_all(slot)
  end
  write_slots()
end

-- After a change of lanes slots are put into theirs little by little.
local function sort_slots()
  local slots = redis.call("ZRANGE", key("unsorted"), 0, PROMOTED - 1)
  for _, member in ipairs(slots) do
    touch_all(string.sub(member, 9))
    redis.call("ZREM", key("unsorted"), member)
  end
  write_slots()
  if #slots < PROMOTED then redis.call("HDEL", KEYS[1], "unsorted") end
end

local soon

-- Slots that open within the horizon.
local function soon_slots()
  if not soon then
    soon = {}
    if read_policies().has_limits and asked.later > 0 then
      local last_ms = now_ms + asked.horizon_ms
      soon = redis.call("ZRANGEBYSCORE", key("waiting"), "(" .. now_ms, last_ms, "LIMIT", 0, SOON)
    end
  end
  return soon
end

local function goes_before(one, other)
  if one.rank ~= other.rank then return one.rank < other.rank end
  return one.turn < other.turn
end

-- Fill the list of a lane: by the rank of their head, then by turn.
local function list_of(lane)
  if lane.list then return lane.list end
  lane.list = {}
  local function add(slot, turn, rank)
    local record = record_of(slot)
    if record.room <= 0 then return end
    local entry = {record = record, lane = lane, member = turn .. slot, rank = tonumber(rank)}
    entry.turn = struct.unpack(">I8", turn)
    lane.list[#lane.list + 1] = entry
  end
  local found = redis.call("ZRANGE", lane.ready, 0, asked.limit + asked.full - 1, "WITHSCORES")
  for i = 1, #found, 2 do add(string.sub(found[i], 9), string.sub(found[i], 1, 8), found[i + 1]) end
  for _, slot in ipairs(soon_slots()) do
    local head, turn = head_of(slot, lane), redis.call("HGET", key("turns"), lane.prefix .. slot)
    if head[1] and turn then add(slot, turn, head[2]) end
  end
  if #soon_slots() > 0 then table.sort(lane.list, goes_before) end
  return lane.list
end

-- The first slot of a lane that can be had, and when its request would start.
local function first_of(lane)
  local list = list_of(lane)
  while list[1] do
    local start_ms = start_of(list[1].record)
    if start_ms then return list[1], start_ms end
    local clock = list[1].record.clock
    -- Its limit has become tighter since it was put there.
    if clock and opens_ms(clock) > now_ms then touch_all(list[1].record.name) end
    table.remove(list, 1)
  end
  return nil
end

-- A slot just served goes behind all others whose heads rank equal.
local function insert(entry)
  local list, at = entry.lane.list, 1
  while list[at] and list[at].rank <= entry.rank do at = at + 1 end
  table.insert(list, at, entry)
end
