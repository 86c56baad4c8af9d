-- Delete dead letters; they stay counted as dead, and those of this crawl also as dropped.
-- guarantee: an id that is no longer a dead letter is skipped.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] ids
-- reply: purged
-- cost: O(log n) per dead letter
-- flags: allow-oom

local purged, epoch = 0, redis.call("HGET", KEYS[1], "epoch")
lib.try_writes(false)
lib.all_or_nothing(function()
  for i = 2, #ARGV do
    local letter = lib.take_letter(ARGV[i])
    if letter and lib.died_in(letter, epoch) then lib.count("dead_dropped", 1) end
    if letter then purged = purged + 1 end
  end
  lib.write_counters()
end)
return purged
