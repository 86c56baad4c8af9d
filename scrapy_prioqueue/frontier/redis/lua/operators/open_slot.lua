-- Open a slot at once, regardless of its rate and of a pause that its site has asked for.
-- guarantee: valid from the next exchange of any worker on; repeating it does no harm.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] slot
-- reply: {code}
--   code: 0 fine; 1 no crawl is running
-- cost: O(log n)
-- flags: allow-oom

if redis.call("HGET", KEYS[1], "phase") ~= "open" then return {OTHER_CRAWL} end

redis.call("ZREM", key("closed"), ARGV[2])
redis.call("ZREM", key("paced"), ARGV[2])
-- The next exchange moves it to its lanes, as it does with slots whose time has come.
redis.call("ZADD", key("waiting"), "XX", 0, ARGV[2])
lib.set_end_of_limits()
lib.ring_bell()
return {OK}
