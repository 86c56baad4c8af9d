-- Store operators' commands that the server has lost, and return those that the worker doesn't know.
-- guarantee: of two commands about the same thing the later one is valid; repeating one does no harm.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] since_ms: time of the newest command that the worker knows
-- ARGV[4] most: maximum number of commands returned
-- ARGV[5..] triples: command, time, value; see lib/orders.lua
-- reply: {code, taken, ordered_ms, count, orders}: number of commands that the server had lost; time of the newest one
--   that it has, and their number
--   code: 0 fine; 1 other crawl; 2 unknown session
--   orders: {command, time, value, command, …} since that time, the oldest first
-- cost: O(commands * log n), and O(workers) if the fleet was to stop
-- flags: allow-oom

local epoch, phase = unpack(redis.call("HMGET", KEYS[1], "epoch", "phase"))
local refusal = lib.refusal_of(epoch, phase)
if refusal then return {refusal} end

local taken = 0
for i = 5, #ARGV, 3 do
  if lib.take_order(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]) then taken = taken + 1 end
end
if taken > 0 then lib.ring_bell() end

local found = redis.call("ZRANGEBYSCORE", key("ordered"), "(" .. ARGV[3], "+inf", "WITHSCORES", "LIMIT", 0, ARGV[4])
local orders = {}
for i = 1, #found, 2 do
  local at = #orders
  orders[at + 1], orders[at + 2], orders[at + 3] = found[i], tonumber(found[i + 1]), lib.order_value(found[i])
end
local ordered_ms = tonumber(redis.call("HGET", KEYS[1], "ordered_ms") or 0)
return {OK, taken, ordered_ms, redis.call("ZCARD", key("ordered")), orders}
