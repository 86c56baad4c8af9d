-- Remove pending and delayed requests from the crawl; their fingerprints stay seen.
-- guarantee: a request that is gone or leased by now is skipped.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] requests, each: id, attempts, rank, slot, payload
-- reply: removed
-- cost: O(log n) per request
-- flags: allow-oom

local removed = 0
lib.try_writes(false)
lib.all_or_nothing(function()
  for i = 2, #ARGV, 5 do
    local found = lib.take_pending(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    if found then removed = removed + 1 end
  end
  lib.count("accepted", -removed)
  lib.count("removed", removed)
  lib.write_changes()
end)
return removed
