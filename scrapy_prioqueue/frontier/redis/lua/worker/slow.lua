-- Store which pages of a worker may never end, and what blocks it, for operators and waiting workers.
-- guarantee: a session that was replaced changes nothing.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- ARGV[5] pages: JSON array of objects with `id`, `url`, `callback`, `stage` and `age_ms`, and if its loop is blocked
--   one with `blocked`, `is_idle` and `age_ms`; empty for none
-- ARGV[6] is_idle 0 or 1: it is blocked, and others have all of its requests, so nobody waits for it
-- reply: {code}
--   code: 0 fine; 1 other crawl; 2 unknown session; 4 session superseded
-- cost: O(pages)
-- flags: allow-oom

local worker, nonce = ARGV[3], ARGV[4]

local epoch, phase = unpack(redis.call("HMGET", KEYS[1], "epoch", "phase"))
local last_batch, why = lib.last_batch_in(epoch, phase, worker, nonce)
if not last_batch then return {why} end

-- The first write needs no memory.
redis.call("HDEL", key("slow"), worker)
if ARGV[5] ~= "" then
  local pages = cjson.decode(ARGV[5])
  for _, page in ipairs(pages) do page.since_ms, page.age_ms = now_ms - page.age_ms, nil end
  redis.call("HSET", key("slow"), worker, cjson.encode(pages))
end
if ARGV[6] == "1" then redis.call("ZREM", key("busy"), worker) end
return {OK}
