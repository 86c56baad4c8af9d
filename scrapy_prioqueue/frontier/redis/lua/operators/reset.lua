-- Declare the crawl over, and let a program clear the frontier, unless workers are alive.
-- guarantee: a worker that counted as lost and comes back finds that its crawl is over.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] client: id of the program while it clears
-- ARGV[3] lease_ttl_ms
-- reply: {code, …}
--   0 clear it: {0}
--   13 workers are alive: {13, names}
-- cost: O(workers)
-- flags: allow-oom

local ALIVE = 13

local alive = redis.call("ZRANGEBYSCORE", key("workers"), now_ms - tonumber(ARGV[3]), "+inf")
if alive[1] then return {ALIVE, alive} end
lib.forget_crawl()
redis.call("HSET", KEYS[1], "phase", "ended", "cleaner", ARGV[2], "cleaning_ms", now_ms, "scope", "all")
return {OK}
