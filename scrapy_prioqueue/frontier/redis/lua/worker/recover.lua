-- Return leases of this worker that nobody here works on: those of an earlier process, or of a lost reply.
-- guarantee: other workers' leases are not changed, nor those renewed or granted since the expiry was read, however
--   late this call comes.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- ARGV[5] max_attempts, or 0 if the requests were never started, so that the attempts aren't counted
-- ARGV[6..] pairs: id, expiry_ms as it was read
-- reply: {code, recovered, new_letters}: new_letters has id and value of each new dead letter, alternating
--   code: 0 fine; 1 other crawl; 2 unknown session; 4 session superseded
-- cost: O(log n) per lease
-- flags: allow-oom

local worker, nonce, max_attempts, recovered = ARGV[3], ARGV[4], tonumber(ARGV[5]), 0

local epoch, phase = lib.read_state("epoch", "phase")
local last_batch, why = lib.last_batch_in(epoch, phase, worker, nonce)
if not last_batch then return {why} end

lib.try_writes(false, ARGV[2])
local ids = {}
for i = 6, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
lib.try_queues(ids)
lib.all_or_nothing(function()
  for i = 6, #ARGV, 2 do
    local lease = lib.read_lease(ARGV[i])
    local expiry_ms = redis.call("ZSCORE", key("leases"), ARGV[i])
    if lease and lease.worker == worker and expiry_ms and tonumber(expiry_ms) == tonumber(ARGV[i + 1]) then
      recovered = recovered + 1
      if max_attempts == 0 then
        lib.give_back(ARGV[i], lease, lease.attempts - 1)
      else
        lib.give_back_lost(ARGV[i], lease, max_attempts, #ARGV == 7)
      end
    end
  end
  if recovered > 0 then lib.write_changes() end
end)
return {OK, recovered, new_letters}
