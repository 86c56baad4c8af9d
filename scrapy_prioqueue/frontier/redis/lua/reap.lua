-- Do what time has brought: give expired leases back, or up; queue delayed requests that are due; forget the silent.
-- guarantee: runs on a full server, too: its first write needs no memory.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] max_attempts
-- ARGV[4] limit: most leases reaped, and most requests put into the queue, by this call
-- ARGV[5] lease_ttl_ms
-- reply: {code, reaped, buried}: buried holds id and value of each new dead letter in turn
--   code: 0 fine; 1 other crawl; 2 unknown session
-- cost: O(log n) per expired lease, due request and forgotten worker
-- flags: allow-oom

local state = redis.call("HMGET", KEYS[1], "epoch", "phase")
if has_forgotten(state[1]) then return {UNKNOWN_SESSION} end
if is_other_crawl(state[1], state[2]) then return {OTHER_CRAWL} end

local MAX_WORKERS, SILENT_TTLS = 10, 10

local function forget_silent_workers()
  local before_ms = now_ms - SILENT_TTLS * tonumber(ARGV[5])
  local silent = redis.call("ZRANGEBYSCORE", key("workers"), "-inf", before_ms, "LIMIT", 0, MAX_WORKERS)
  for _, name in ipairs(silent) do forget_worker(name) end
end

forget_silent_workers()
if next_due_ms(0) == 0 then try_writes(false, ARGV[2]) end
local expired = redis.call("ZRANGEBYSCORE", key("leases"), "-inf", now_ms, "LIMIT", 0, ARGV[4])
try_queues(expired)
for _, id in ipairs(expired) do give_back_lost(id, read_lease(id), tonumber(ARGV[3])) end
if promote(tonumber(ARGV[4])) + #expired > 0 then
  count("reaped", #expired)
  write_changes()
end
return {OK, #expired, buried}
