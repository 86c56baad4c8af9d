-- Extend held leases and report the worker as alive.
-- guarantee: a lease that this worker doesn't hold is not changed.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- ARGV[5] last_batch: number of the last batch that this worker knows to be applied
-- ARGV[6] lease_ttl_ms
-- ARGV[7..] pairs: id, attempts
-- reply: {code, lost}: ids of the leases that this worker doesn't hold
--   code: 0 fine; 1 other crawl; 2 unknown session; 3 batches are lost; 4 session superseded
-- cost: O(log n) per lease
-- flags: allow-oom

local worker, nonce, ttl_ms = ARGV[3], ARGV[4], tonumber(ARGV[6])
local lost = {}

local epoch, phase = unpack(redis.call("HMGET", KEYS[1], "epoch", "phase"))
local last_batch, why = lib.last_batch_in(epoch, phase, worker, nonce)
if not last_batch then return {why} end
if last_batch < tonumber(ARGV[5]) then return {OUT_OF_STEP} end

redis.call("ZREM", key("hungry"), worker)
local ids = {}
for i = 7, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
lib.know_leases(ids)
local renewed = {}
for i = 7, #ARGV, 2 do
  if lib.held_lease(ARGV[i], tonumber(ARGV[i + 1]), worker) then
    renewed[#renewed + 1], renewed[#renewed + 2] = now_ms + ttl_ms, ARGV[i]
  else
    lost[#lost + 1] = ARGV[i]
  end
end
lib.report_alive(worker)
lib.call_with_all("ZADD", key("leases"), renewed)
return {OK, lost}
