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

try_writes(false)
while dropped < limit do
  local head = redis.call("ZRANGE", key("ready"), 0, 0)[1]
  if not head then break end
  local slot = string.sub(head, 9)
  drop_from("queue", slot)
  touch(slot)
  write_slots()
end
if dropped < limit then drop_from("suspects") end
if dropped < limit then delayed = drop_from("delayed") end
count("accepted", -dropped)
count("pending", delayed - dropped)
count("delayed", -delayed)
count("removed", dropped)
write_counters()
return dropped
