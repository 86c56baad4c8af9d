-- Move some of the slots to their lanes that are not there yet after a change of lanes.
-- guarantee: all or nothing; it works on a full server, since its first write needs no memory.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- reply: {code, has_more (0/1)}
--   code: 0 fine; 1 other crawl; 2 unknown session; 4 session superseded
-- cost: O(log n) per position, for a limited number of positions; see `sort_slots`
-- flags: allow-oom

local worker, nonce = ARGV[3], ARGV[4]

local epoch, phase, unsorted = lib.read_state("epoch", "phase", "unsorted")
local last_batch, why = lib.last_batch_in(epoch, phase, worker, nonce)
if not last_batch then return {why} end
if not unsorted then return {OK, 0} end

lib.try_writes(false, ARGV[2])
lib.report_alive(worker)
lib.all_or_nothing(lib.sort_slots)
return {OK, lib.unsorted_key() and 1 or 0}
