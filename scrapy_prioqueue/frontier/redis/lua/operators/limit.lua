-- Set or remove an operator's limit of a slot, or of all that match a pattern.
-- guarantee: valid from the next exchange of any worker on, also for waiting slots; settings of workers that join
--   later don't change it.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] pattern: slot, `*.suffix`, or `*` for all
-- ARGV[3] entry: JSON object with any fields of `SlotLimit` in policy.py; the others keep their values; empty to
--   remove all
-- reply: {code, new entry, empty for none}
--   code: 0 fine; 1 no crawl is running
-- cost: O(waiting slots), of which at most 250 change to their new rate at once
-- flags: allow-oom

local MOST_PACED = 250

if redis.call("HGET", KEYS[1], "phase") ~= "open" then return {OTHER_CRAWL} end

local slot_limits, pattern, entry = lib.with_limits(), ARGV[2], ""

-- Slots that the entry may affect and that wait because they were served lately, with their limits so far.
local function paced_slots()
  local found, slots = {pattern}, {}
  if string.find(pattern, "*", 1, true) then
    found = redis.call("ZREVRANGEBYSCORE", key("paced"), "+inf", "(" .. now_ms, "LIMIT", 0, MOST_PACED)
  end
  for _, slot in ipairs(found) do slots[slot] = slot_limits.clock_of(slot).limit end
  return slots
end

-- Requests served lately are counted at the new rate. A closed slot stays closed until its pause is over.
local function pace_anew(slot, before)
  local clock = slot_limits.clock_of(slot)
  local after, left_ms = clock.limit, clock.paced - now_ms
  if left_ms <= 0 or (after.interval == before.interval and after.burst == before.burst) then return end
  if left_ms <= before.burst * before.interval then
    clock.paced = now_ms + math.min(left_ms / before.interval, after.burst) * after.interval
  else
    clock.paced = clock.paced - (before.burst - 1) * before.interval + (after.burst - 1) * after.interval
  end
  local closed_ms = tonumber(redis.call("ZSCORE", key("closed"), slot) or 0)
  if closed_ms > now_ms then
    clock.paced = math.max(clock.paced, closed_ms + (after.burst - 1) * after.interval)
  end
  clock.is_paced = true
end

-- The first write needs no memory.
lib.try_limits()
redis.call("ZREM", key("closed"), NOBODY)
redis.call("ZSCORE", key("closed"), NOBODY)
lib.try_hash("leased")
local paced = paced_slots()
if ARGV[3] ~= "" then
  entry = cjson.encode(lib.merged({ARGV[3], redis.call("HGET", key("limits"), "!" .. pattern)}))
end
lib.note_orders({"limits!" .. pattern})
if ARGV[3] == "" then
  redis.call("HDEL", key("limits"), "!" .. pattern)
else
  lib.enable_limits()
  redis.call("HSET", key("limits"), "!" .. pattern, entry)
end
lib.refresh_limits()
for slot, before in pairs(paced) do pace_anew(slot, before) end
slot_limits.write()
lib.ring_bell()
return {OK, entry}
