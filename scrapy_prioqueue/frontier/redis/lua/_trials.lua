-- Writes without effect, so that the server refuses a call before it changes anything; put behind `_lanes.lua` at load.

-- A script that fails in the middle is applied by half: what it did before is not undone. The server refuses a key of
-- another type, and a command or key that the user has no rights to (any more).

function lib.try_zset(noun, id)
  redis.call("ZREM", key(noun, id), "")
end

function lib.try_hash(noun)
  redis.call("HDEL", key(noun), "")
end

-- What only frontiers with limits, budgets or lanes write.
function lib.try_policies()
  local has = lib.read_policies()
  if has.has_limits then lib.with_limits().try() end
  if has.has_budgets then lib.with_budgets().try() end
  if has.lanes == 0 then return end
  for tier = 0, has.lanes - 1 do lib.try_zset("ready", tier) end
  redis.call("HGETALL", key("passes"))
  lib.try_hash("passes")
end

-- With the epoch, which callers in a session have, `state` is tried, too.
-- Where the first write is to need memory, a full server refuses the call here, else it lets it run to its end.
function lib.try_writes(needs_memory, epoch)
  if needs_memory then redis.call("ZADD", key("workers"), "XX", 0, "") end
  for _, noun in ipairs({"hungry", "workers", "busy", "ready", "suspects", "delayed", "leases", "died"}) do
    lib.try_zset(noun)
  end
  for _, noun in ipairs({"stats", "turns", "leased", "lost", "dead", "sessions", "claims", "work", "pace"}) do
    lib.try_hash(noun)
  end
  lib.try_policies()
  redis.call("SREM", key("marks"), "")
  redis.call("ZPOPMIN", key("died"), 0)
  redis.call("ZRANGE", key("ready"), 0, 0)
  redis.call("ZCARD", key("died"))
  redis.call("ZCOUNT", key("busy"), 0, 0)
  redis.call("ZADD", key("workers"), "XX", 0, "")
  redis.call("HINCRBY", key("stats"), "accepted", 0)
  if epoch then redis.call("HSET", KEYS[1], "epoch", epoch) end
end
