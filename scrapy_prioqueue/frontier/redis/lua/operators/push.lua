-- Store requests of a program that isn't a worker, each after those of equal rank, in the given order.
-- guarantee: all or nothing; a full server refuses it at its first write.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] requests, each with the arguments of a push as in `commit`
-- reply: {code, duplicates}: the indexes of duplicates, counted from 0
--   code: 0 fine; 1 no crawl accepts requests now, `open` it
-- cost: O(log n) per request, and a look-up per level of the seen sets
-- flags:

local phase, order, crawl_id, cleaner = lib.read_state("phase", "order", "crawl_id", "cleaner")
if not lib.takes_requests(phase, cleaner) then return {OTHER_CRAWL} end

local duplicates = {}
lib.begin_storing(order, (#ARGV - 1) / PUSH_LENGTH)
lib.try_writes(true)
for i = 2, #ARGV, PUSH_LENGTH do lib.try_zset("queue", ARGV[i + 1]) end

lib.all_or_nothing(function()
  for i = 2, #ARGV, PUSH_LENGTH do
    if lib.known_by(i) then duplicates[#duplicates + 1] = (i - 2) / PUSH_LENGTH else lib.store(i) end
  end
  lib.count("accepted", stored.accepted)
  lib.count("pending", stored.accepted - stored.delayed)
  lib.count("duplicates", #duplicates)
  lib.note_pace("a", stored.accepted)
  lib.finish_changes(phase, crawl_id, stored.accepted)
  lib.write_seen()
end)
lib.move_seen_on()
return {OK, duplicates}
