-- Forget fingerprints, so that what has them may be pushed again.
-- guarantee: all or nothing; nothing that is pending, leased or dead changes.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] pairs: bucket and member of a fingerprint
-- reply: indexes of those that were seen, counted from 0
-- cost: O(levels) per fingerprint
-- flags: allow-oom

local seen = lib.count_seen()
local forgotten, levels, floor, capacity = {}, 1, 0, BUCKETS * FILL
while seen >= capacity do
  floor = capacity
  capacity, levels = capacity + BUCKETS * GROWTH ^ levels * FILL, levels + 1
end
for i = 2, #ARGV, 2 do
  local found, buckets = 0, BUCKETS
  for level = 0, levels - 1 do
    local bucket = lib.seen_bucket(level, tonumber(ARGV[i]) % buckets)
    found = found + redis.call("SREM", bucket, ARGV[i + 1])
    buckets = buckets * GROWTH
  end
  if found > 0 then forgotten[#forgotten + 1] = (i - 2) / 2 end
end
-- Below its floor the newest level would not be looked into any more.
if #forgotten > 0 then redis.call("HSET", lib.seen_key("state"), "seen", math.max(floor, seen - #forgotten)) end
return forgotten
