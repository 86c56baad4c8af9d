-- Trial writes without effect, so that the server refuses a call before it changes anything.
-- It refuses a key of another type, and a command or key that the user may not use (any more).

function lib.try_zset(noun, id)
  redis.call("ZREM", key(noun, id), NOBODY)
end

function lib.try_hash(noun)
  redis.call("HDEL", key(noun), NOBODY)
end

-- Keys that only frontiers with limits, budgets or lanes write.
function lib.try_policies() -- policies
  local has = lib.read_policies()
  if has.has_limits then lib.try_limits() end
  if has.has_budgets then lib.try_budgets() end
  if has.counting then lib.try_counting() end
  if has.lanes == 0 then return end
  for tier = 0, has.lanes - 1 do lib.try_zset("ready", tier) end
  redis.call("ZRANGEBYSCORE", key("ready"), 0, 0, "LIMIT", 0, 0)
  redis.call("HGETALL", key("passes"))
  lib.try_hash("passes")
end

function lib.try_each(zsets, hashes)
  for _, noun in ipairs(zsets) do lib.try_zset(noun) end
  for _, noun in ipairs(hashes) do lib.try_hash(noun) end
end

-- Keys for leasing, except those of `report_alive`; keys that are read before anything is taken try themselves.
function lib.try_serving()
  lib.try_each({}, {"turns", "leased"})
  redis.call("HINCRBY", key("stats"), "accepted", 0)
end

-- Keys for new requests and acks, except those of `report_alive` and the session, which was read.
local function try_plain(pushes, acks)
  lib.try_each({}, {"claims", "pace"})
  if pushes > 0 then
    lib.try_each({"delayed"}, {"turns"})
    redis.call("ZRANGE", key("ready"), 0, 0)
    redis.call("ZCARD", key("hungry"))
  end
  if acks > 0 then lib.try_each({"leases"}, {"leased", "work"}) end
  redis.call("HINCRBY", key("stats"), "accepted", 0)
end

-- With the epoch, which callers in a session have, `state` is tried, too.
-- With `needs_memory` a full server refuses the call at its first write; otherwise it executes all of it.
function lib.try_writes(needs_memory, epoch) -- seldom
  if needs_memory then redis.call("ZADD", key("workers"), "XX", 0, NOBODY) end
  lib.try_each(
    {"hungry", "workers", "busy", "ready", "suspects", "delayed", "leases", "died"},
    {"stats", "turns", "leased", "lost", "dead", "sessions", "claims", "work", "pace", "refused", "alone",
      "granted"})
  lib.try_policies()
  redis.call("SREM", key("marks"), NOBODY)
  redis.call("ZRANGE", key("ready"), 0, 0)
  redis.call("ZCARD", key("died"))
  redis.call("ZRANGEBYSCORE", key("died"), 0, 0, "LIMIT", 0, 0)
  redis.call("ZCOUNT", key("busy"), 0, 0)
  redis.call("ZADD", key("workers"), "XX", 0, NOBODY)
  redis.call("HINCRBY", key("stats"), "accepted", 0)
  if epoch then redis.call("HSET", KEYS[1], "epoch", epoch) end
end

-- Try only what the operations of a batch need, which are mostly new requests and first acks.
function lib.try_operations(is_plain, pushes, acks, epoch)
  if not is_plain or lib.read_policies().counting then return lib.try_writes(false, epoch) end
  try_plain(pushes, acks)
  if lib.has_policies() then lib.try_policies() end
  redis.call("HSET", KEYS[1], "epoch", epoch)
end
