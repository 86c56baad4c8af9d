-- End leases of a lost worker as their expiry would, and finally remove the worker.
-- guarantee: leases of other workers are not changed, and nothing is changed if the worker has begun another session;
--   a worker that is alive after all joins again.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] worker
-- ARGV[3] max_attempts
-- ARGV[4] is_last 0 or 1: remove the worker, since it has no lease left after this call
-- ARGV[5] session of the worker as stored; empty for any
-- ARGV[6..] ids of leases
-- reply: {code, taken, new_letters}: number of leases ended; id and value of each new dead letter, alternating
--   code: 0 fine
-- cost: O(log n) per lease
-- flags: allow-oom

local taken = 0
if ARGV[5] ~= "" and redis.call("HGET", key("sessions"), ARGV[2]) ~= ARGV[5] then return {OK, 0, new_letters} end
lib.try_writes(false)
lib.try_queues({unpack(ARGV, 6)})
lib.all_or_nothing(function()
  for i = 6, #ARGV do
    local lease = lib.read_lease(ARGV[i])
    if lease and lease.worker == ARGV[2] then
      lib.give_back_lost(ARGV[i], lease, tonumber(ARGV[3]))
      taken = taken + 1
    end
  end
  lib.write_changes()
end)
if ARGV[4] == "1" then
  -- A worker that is alive after all continues after its last batch, since the server has not lost that.
  local session = ARGV[5] == "" and redis.call("HGET", key("sessions"), ARGV[2])
  if session then redis.call("HSET", KEYS[1], "evicted:" .. ARGV[2], string.match(session, "%d+$")) end
  lib.forget_worker(ARGV[2])
end
if taken > 0 then lib.wake_hungry() end
return {OK, taken, new_letters}
