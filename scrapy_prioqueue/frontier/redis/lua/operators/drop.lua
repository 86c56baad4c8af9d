-- Drop the pending requests of some slots, and finally the delayed ones; their fingerprints stay seen.
-- guarantee: leases are not changed, and the counters balance after each call.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] limit: maximum number of positions in lanes that this call processes
-- reply: {dropped, has_more (0/1)}
-- cost: O(limit * log n), however many requests there are: their memory is freed in the background
-- flags: allow-oom

local limit = math.max(1, math.floor(tonumber(ARGV[2]) / #lib.all_lanes()))
local slots, is_found, standing = {}, {}, {}

-- Slots in a key, after their turns if it has those.
local function find_slots(name, first)
  if #slots >= limit then return end
  local members = redis.call("ZRANGE", name, 0, limit - #slots - 1)
  if members[1] then standing[#standing + 1], standing[#standing + 2] = name, members end
  for _, member in ipairs(members) do
    local slot = string.sub(member, first)
    if not is_found[slot] then is_found[slot], slots[#slots + 1] = true, slot end
  end
end

local function find_all()
  for _, lane in ipairs(lib.all_lanes()) do find_slots(lane.ready, 9) end
  -- The others are moved to their lanes later.
  local unsorted = lib.unsorted_key()
  if unsorted then find_slots(unsorted, 9) end
  find_slots(key("waiting"), 1)
end

local function leave(lane)
  local positions, members = {}, {}
  for i, slot in ipairs(slots) do positions[i] = lane.prefix .. slot end
  for i, turn_text in ipairs(redis.call("HMGET", key("turns"), unpack(positions))) do
    if turn_text then members[#members + 1] = turn_text .. slots[i] end
  end
  if not members[1] then return end
  redis.call("ZREM", lane.ready, unpack(members))
  redis.call("HDEL", key("turns"), unpack(positions))
end

local function anything_stands()
  for _, lane in ipairs(lib.all_lanes()) do
    if redis.call("ZCARD", lane.ready) > 0 then return true end
  end
  return lib.unsorted_key() ~= nil or redis.call("ZCARD", key("waiting")) > 0
end

-- The queues are dropped last, in one command, since that can't be undone.
local keys = {}
local function note_drop(noun, id)
  keys[#keys + 1] = key(noun, id)
  return redis.call("ZCARD", keys[#keys])
end

lib.try_writes(false)
find_all()
local pending, delayed, has_more, placed = 0, 0, false, {}
for _, slot in ipairs(slots) do
  pending = pending + note_drop("queue", slot)
  placed[#placed + 1], placed[#placed + 2] = slot, true
end

lib.all_or_nothing(function()
  lib.note_undo_end("lib.restore_positions", placed)
  if slots[1] then
    for _, lane in ipairs(lib.all_lanes()) do leave(lane) end
    redis.call("ZREM", key("waiting"), unpack(slots))
  end
  for i = 1, #standing, 2 do redis.call("ZREM", standing[i], unpack(standing[i + 1])) end
  has_more = anything_stands()
  if not has_more then pending, delayed = pending + note_drop("suspects"), note_drop("delayed") end
  lib.count("accepted", -pending - delayed)
  lib.count("pending", -pending)
  lib.count("delayed", -delayed)
  lib.count("removed", pending + delayed)
  lib.write_counters()
  if keys[1] then redis.call("UNLINK", unpack(keys)) end
end)
return {pending + delayed, has_more and 1 or 0}
