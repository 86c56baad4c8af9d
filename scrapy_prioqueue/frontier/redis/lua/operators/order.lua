-- Send a command to the fleet: pause or resume, accept requests found on pages or not, stop.
-- guarantee: all or nothing; workers read it with their next exchange; one that joins later isn't stopped.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] paused: 0 or 1, empty to keep it
-- ARGV[3] drained: likewise
-- ARGV[4] reason with which all workers that have joined are to close, empty for none
-- reply: {code, workers}: the workers that have joined
--   code: 0 fine; 1 there is no such frontier
-- cost: O(workers)
-- flags: allow-oom

local layout = redis.call("HGET", KEYS[1], "layout")
if not layout then return {OTHER_CRAWL} end

local workers = redis.call("ZRANGE", key("workers"), 0, -1)
local fields, stops, names = {}, {}, {}
if ARGV[2] ~= "" then names[1] = "paused" end
if ARGV[3] ~= "" then names[#names + 1] = "drained" end
if ARGV[2] == "1" then fields[1], fields[2] = "paused", "1" end
if ARGV[3] == "1" then fields[#fields + 1], fields[#fields + 2] = "drained", "1" end
if ARGV[4] ~= "" and workers[1] then
  for _, worker in ipairs(workers) do stops[#stops + 1], stops[#stops + 2] = worker, ARGV[4] end
  for _, text in ipairs({"has_stops", "1", "stop_reason", ARGV[4]}) do fields[#fields + 1] = text end
  names[#names + 1] = "stop_reason"
end

-- The first write needs no memory. Keys that are read only if the state says so are written before the state.
redis.call("HDEL", key("stops"), NOBODY)
lib.note_orders(names)
lib.call_with_all("HSET", key("stops"), stops)
redis.call("HDEL", KEYS[1], ARGV[2] == "0" and "paused" or "", ARGV[3] == "0" and "drained" or "")
if fields[1] then redis.call("HSET", KEYS[1], unpack(fields)) end
lib.ring_bell()
return {OK, workers}
