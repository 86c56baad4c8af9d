-- Put dead letters back into their queues, without attempts.
-- guarantee: it works on a full server, since its first write needs no memory; an id that is no longer a dead letter is
--   skipped.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] requests, each: id, payload, fingerprint as in `lib/seen.lua`, empty if it is not filtered
-- reply: {code, replayed}
--   code: 0 fine; 1 no crawl accepts requests now, `open` it
-- cost: O(log n) per request, and a look-up per level of the seen sets
-- flags: allow-oom

local phase, order, crawl_id, cleaner, epoch = lib.read_state("phase", "order", "crawl_id", "cleaner", "epoch")
if not lib.takes_requests(phase, cleaner) then return {OTHER_CRAWL} end

-- A request that was over a budget is no longer counted as such.
local function forgive(letter)
  local name = letter[1] == "budget" and string.match(letter[2], "^budget (.*): %a+ %S+ of %S+$")
  local given_up = name and tonumber(redis.call("HGET", key("used"), "over:" .. name) or 0) or 0
  if given_up > 0 then lib.add_to_field(key("used"), "over:" .. name, -1) end
end

local replayed = 0
lib.begin_storing(order, 1)
lib.try_writes(false)
lib.try_hash("used")

local function replay(id, payload, fingerprint)
  local letter = lib.take_letter(id)
  if not letter then return end
  if fingerprint ~= "" then lib.mark_seen(fingerprint) end
  lib.put(id, 0, letter[4], letter[5], payload)
  forgive(letter)
  if lib.died_in(letter, epoch) then lib.count("dead", -1) else lib.count("accepted", 1) end
  replayed = replayed + 1
end

lib.all_or_nothing(function()
  for i = 2, #ARGV, 3 do replay(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  lib.finish_changes(phase, crawl_id, replayed)
  lib.write_seen()
end)
lib.move_seen_on()
return {OK, replayed}
