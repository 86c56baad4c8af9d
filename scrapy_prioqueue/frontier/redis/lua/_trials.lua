-- Writes without effect, so that the server refuses a call before it changes anything; put behind `_lib.lua` at load.

-- A script that fails in the middle is applied by half: what it did before is not undone. The server refuses a key of
-- another type, and a command or key that the user has no rights to (any more).

local function try_zset(noun, id)
  redis.call("ZREM", key(noun, id), "")
end

local function try_hash(noun)
  redis.call("HDEL", key(noun), "")
end

-- Drops, on the way, the clocks that have no say any more.
local function try_limits()
  redis.call("ZREMRANGEBYSCORE", key("paced"), "-inf", "(" .. now_ms - CATCH_UP_MS)
  for _, noun in ipairs({"waiting", "paced"}) do
    try_zset(noun)
    redis.call("ZSCORE", key(noun), "")
  end
  redis.call("ZRANGEBYSCORE", key("waiting"), 0, 0, "LIMIT", 0, 0)
  for _, noun in ipairs({"running", "delays", "limits"}) do
    try_hash(noun)
    redis.call("HMGET", key(noun), "")
  end
end

-- What only frontiers with limits, budgets or lanes write.
local function try_policies()
  local has = read_policies()
  if has.has_limits then try_limits() end
  if has.has_budgets then
    for _, noun in ipairs({"used", "budgets"}) do
      try_hash(noun)
      redis.call("HMGET", key(noun), "")
    end
  end
  for tier = 0, has.lanes - 1 do try_zset("ready", tier) end
  if has.lanes > 0 then redis.call("HGETALL", key("passes")) end
  if has.lanes > 0 then try_hash("passes") end
end

-- With the epoch, which callers in a session have, `state` is tried, too.
-- Where the first write is to need memory, a full server refuses the call here, else it lets it run to its end.
local function try_writes(needs_memory, epoch)
  if needs_memory then redis.call("ZADD", key("workers"), "XX", 0, "") end
  for _, noun in ipairs({"hungry", "workers", "busy", "ready", "suspects", "delayed", "leases", "died"}) do
    try_zset(noun)
  end
  for _, noun in ipairs({"stats", "turns", "leased", "lost", "dead", "sessions", "claims", "work", "pace"}) do
    try_hash(noun)
  end
  try_policies()
  redis.call("SREM", key("marks"), "")
  redis.call("ZPOPMIN", key("died"), 0)
  redis.call("ZRANGE", key("ready"), 0, 0)
  redis.call("ZCARD", key("died"))
  redis.call("ZADD", key("workers"), "XX", 0, "")
  redis.call("HINCRBY", key("stats"), "accepted", 0)
  if epoch then redis.call("HSET", KEYS[1], "epoch", epoch) end
end
