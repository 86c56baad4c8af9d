-- Remove a worker that leaves; return to the last one of an ended crawl what to clear.
-- guarantee: a session that was replaced changes nothing.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- ARGV[5] lease_ttl_ms
-- reply: {code, scope}: scope (restart or keep) to clear now, empty for none
--   code: 0 fine; 1 other crawl; 2 unknown session; 4 session superseded
-- cost: O(log n)
-- flags: allow-oom

local worker, nonce, ttl_ms = ARGV[3], ARGV[4], tonumber(ARGV[5])

local epoch, phase, on_finish = unpack(redis.call("HMGET", KEYS[1], "epoch", "phase", "on_finish"))
local last_batch, why = lib.last_batch_in(epoch, phase, worker, nonce)
if not last_batch then return {why} end

redis.call("HDEL", key("kept"), worker)
lib.forget_worker(worker)
if phase ~= "ended" or redis.call("ZCOUNT", key("workers"), now_ms - ttl_ms, "+inf") > 0 then return {OK, ""} end
redis.call("HSET", KEYS[1], "cleaner", worker, "scope", on_finish)
return {OK, on_finish}
