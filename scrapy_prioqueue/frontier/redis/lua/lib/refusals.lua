-- Requests that some workers can't decode, since they run another version of the spider.

-- Delay of a request that is set aside for other workers.
local ASIDE_MS = 1000

-- The workers that have refused a request, in order; nil if none has.
function lib.refusals_of(id) -- seldom
  local names = redis.call("HGET", key("refused"), id)
  return names and cmsgpack.unpack(names)
end

-- Return a request that its worker can't decode, delayed and for others. It doesn't count as an attempt.
function lib.refuse(id, lease, delay_ms) -- seldom
  local earlier = redis.call("HGET", key("refused"), id)
  local names = {}
  if earlier then
    local refusers = cmsgpack.unpack(earlier)
    local heard = redis.call("ZMSCORE", key("workers"), unpack(refusers))
    -- Those that have left don't count, and a worker that a supervisor starts again and again would fill the record.
    for i, name in ipairs(refusers) do
      if heard[i] then names[#names + 1] = name end
    end
  end
  names[#names + 1] = lease.worker
  lib.replace_field(key("refused"), id, earlier, cmsgpack.pack(names))
  if redis.call("HSET", KEYS[1], "has_refused", 1) == 1 then lib.note_undo("HDEL", KEYS[1], "has_refused") end
  lib.drop_lease(id, lease)
  lib.hold(lease.payload, -1)
  lib.put_delayed(id, lease.attempts - 1, lease.rank, lease.slot, lease.payload, now_ms + delay_ms)
end

-- How often all living workers have refused a request that is given to this worker; 0 if this worker never has.
-- A worker gets it again only if no other living one is left, so each repeated name is a further round.
function lib.rounds_of(names, worker) -- seldom
  local has_refused, repeated = {}, 0
  for _, name in ipairs(names) do
    if has_refused[name] then repeated = repeated + 1 end
    has_refused[name] = true
  end
  return has_refused[worker] and repeated + 1 or 0
end

-- Set a request that the worker has refused aside for others if a living one has not; return whether that is so.
function lib.set_aside(names, since_ms, id, attempts, rank, slot, payload) -- seldom
  local has_refused = {}
  for _, name in ipairs(names) do has_refused[name] = true end
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", key("workers"), since_ms, "+inf")) do
    if not has_refused[name] then
      lib.put_delayed(id, attempts, rank, slot, payload, now_ms + ASIDE_MS)
      return true
    end
  end
  return false
end
