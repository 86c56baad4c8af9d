-- Drop some keys of the frontier on behalf of the one worker that clears it.
-- guarantee: a worker that is not, or not any more, the one that clears, drops nothing.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] worker
-- ARGV[3] is_last 0 or 1: nothing is left to be cleared after this call
-- ARGV[4..] keys to drop
-- reply: 1 dropped, 0 another worker clears
-- cost: O(keys); their memory is freed in the background
-- flags: allow-oom

local state = redis.call("HMGET", KEYS[1], "cleaner", "phase", "scope")
if state[1] ~= ARGV[2] then return 0 end
redis.call("HDEL", KEYS[1], "is_clear")
for i = 4, #ARGV do redis.call("UNLINK", ARGV[i]) end
redis.call("HSET", KEYS[1], "cleaning_ms", now_ms)
if ARGV[3] == "1" then
  if state[3] ~= "keep" then redis.call("HDEL", KEYS[1], "seen", "seen_sets", "seen_moved", "seen_shape") end
  if state[2] == "ended" then redis.call("HSET", KEYS[1], "is_clear", "1") end
end
return 1
