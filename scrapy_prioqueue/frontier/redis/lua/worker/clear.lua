-- Drop some keys of the frontier for the worker that clears it, and queues of slots in the order of their lanes.
-- guarantee: another worker drops nothing, nor does one whose clearing was taken over; the state has the progress for
--   the worker that takes it over.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] worker
-- ARGV[3] most_queues: maximum number of positions in lanes whose queues are dropped by this call
-- ARGV[4] progress: stored in the state, see `clearing.py`; empty if nothing is left
-- ARGV[5..] keys to drop
-- reply: {is_clearing, positions}: 0 if another worker clears; number of positions in lanes that were dropped
-- cost: O(keys + most_queues * log n); the memory is freed in the background
-- flags: allow-oom

local MOST_TIERS, MOST_SERVED = 128, 40

local cleaner, phase, scope, unsorted = unpack(redis.call("HMGET", KEYS[1], "cleaner", "phase", "scope", "unsorted"))
if cleaner ~= ARGV[2] then return {0, 0} end
redis.call("HDEL", KEYS[1], "is_clear")
local left = tonumber(ARGV[3])

-- Drop the queues of slots in a lane; the slot begins at byte `first` of each member.
local function drop_queues(lane, first)
  if left <= 0 then return end
  -- Raises an error for a key of another type, which is dropped below.
  local members, queues = redis.pcall("ZRANGE", lane, 0, left - 1), {}
  if not members[1] then return end
  for i, member in ipairs(members) do queues[i] = key("queue", string.sub(member, first)) end
  redis.call("UNLINK", unpack(queues))
  redis.call("ZREMRANGEBYRANK", lane, 0, #members - 1)
  left = left - #members
end

-- All possible lanes: the single one, those of the tiers, and those of earlier policies.
if left > 0 then
  drop_queues(key("ready"), 9)
  drop_queues(key("waiting"), 1)
  for tier = 0, MOST_TIERS - 1 do drop_queues(key("ready", tier), 9) end
  for number = 1, tonumber(unsorted or 0) do drop_queues(lib.name_of_unsorted(number), 9) end
end
for i = 5, #ARGV do redis.call("UNLINK", ARGV[i]) end
redis.call("HSET", KEYS[1], "cleaning_ms", now_ms, "cleared", ARGV[4])
if ARGV[4] == "" then
  redis.call("HDEL", KEYS[1], "cleared", "unsorted")
  for earlier = 0, MOST_SERVED do redis.call("UNLINK", lib.served_key(earlier)) end
  if scope ~= "keep" then
    redis.call("HDEL", KEYS[1], "seen", "seen_sets", "seen_moved", "seen_swept", "seen_shape", "seen_levels",
      "identity")
  end
  if phase == "ended" then redis.call("HSET", KEYS[1], "is_clear", "1") end
end
return {1, tonumber(ARGV[3]) - left}
