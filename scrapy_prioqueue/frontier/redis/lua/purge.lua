-- Throw dead letters away; they stay counted as dead, and those of this crawl as dropped.
-- guarantee: one that is no dead letter any more is left.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] ids
-- reply: purged
-- cost: O(log n) per dead letter
-- flags: allow-oom

local purged, state = 0, redis.call("HMGET", KEYS[1], "epoch", "created_ms")
lib.try_writes(false)
for i = 2, #ARGV do
  local value = redis.call("HGET", key("dead"), ARGV[i])
  if value then
    redis.call("ZREM", key("died"), ARGV[i])
    redis.call("HDEL", key("dead"), ARGV[i])
    if lib.died_in(cmsgpack.unpack(value), state[1], state[2]) then lib.count("dead_dropped", 1) end
    purged = purged + 1
  end
end
lib.write_counters()
return purged
