-- Take some pending and delayed requests out of the crawl, whichever they are; their fingerprints stay seen.
-- guarantee: what is leased stays so, and the books balance after each call.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] limit: most requests dropped by this call
-- reply: dropped; fewer than the limit only where nothing is left
-- cost: O(limit * log n)
-- flags: allow-oom

local limit, dropped, delayed = tonumber(ARGV[2]), 0, 0

local function drop_from(noun, id)
  local popped = #redis.call("ZPOPMIN", key(noun, id), limit - dropped) / 2
  dropped = dropped + popped
  return popped
end

local function next_slot()
  for _, lane in ipairs(lib.all_lanes()) do
    local head = redis.call("ZRANGE", lane.ready, 0, 0)[1]
    if head then return string.sub(head, 9) end
  end
  -- What is left of it finds its lanes.
  local name = lib.unsorted_key()
  if name then return string.sub(redis.call("ZPOPMIN", name)[1], 9) end
  return redis.call("ZRANGE", key("waiting"), 0, 0)[1]
end

lib.try_writes(false)
while dropped < limit do
  local slot = next_slot()
  if not slot then break end
  drop_from("queue", slot)
  lib.touch_all(slot)
  lib.write_slots()
end
if dropped < limit then drop_from("suspects") end
if dropped < limit then delayed = drop_from("delayed") end
lib.count("accepted", -dropped)
lib.count("pending", delayed - dropped)
lib.count("delayed", -delayed)
lib.count("removed", dropped)
lib.write_counters()
return dropped
