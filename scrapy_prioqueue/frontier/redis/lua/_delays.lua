-- What becomes of delayed requests as time goes by; put behind `_moves.lua` at load.

-- Give delayed requests that are due their places in the queues; return how many.
local function promote(limit)
  local due = redis.call("ZRANGEBYSCORE", key("delayed"), "-inf", now_ms, "LIMIT", 0, limit)
  for _, envelope in ipairs(due) do
    local rank, slot, rest = struct.unpack(">dI4c0", envelope, 10)
    try_zset("queue", slot)
    redis.call("ZREM", key("delayed"), envelope)
    put(string.sub(envelope, 1, 8), string.byte(envelope, 9), rank, slot, string.sub(envelope, rest))
  end
  count("delayed", -#due)
  return #due
end

-- Milliseconds until a lease expires or a delayed request is due, -1 if there is neither.
local function next_due_ms()
  local expiry_ms = redis.call("ZRANGE", key("leases"), 0, 0, "WITHSCORES")[2]
  local due_ms = redis.call("ZRANGE", key("delayed"), 0, 0, "WITHSCORES")[2]
  if not (expiry_ms or due_ms) then return -1 end
  return math.max(0, math.min(tonumber(expiry_ms or math.huge), tonumber(due_ms or math.huge)) - now_ms)
end
