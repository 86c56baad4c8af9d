-- Expired leases, delayed requests that are due, silent workers, and those that return after an outage.

-- Count how often a request was lost as the only possible culprit: its worker lost no other lease, or held no other
-- suspect.
local function count_alone(id, lease, is_alone)
  local before = lease.attempts - 1
  if not (is_alone or lib.is_suspect(before) and lib.group_of(before) == 1) then
    return tonumber(redis.call("HGET", key("alone"), id) or 0)
  end
  return lib.add_to_field(key("alone"), id, 1)
end

-- Return a lost lease to the queue, or give the request up if it was lost too often; record the lost worker.
-- Attempts are stored in one byte.
function lib.give_back_lost(id, lease, max_attempts, is_alone) -- seldom
  local MOST_ATTEMPTS = 250
  local alone_needed = math.min(2, max_attempts - math.max(1, math.min(2, max_attempts - 1)))
  local alone = count_alone(id, lease, is_alone)
  local is_to_blame = alone >= alone_needed or lease.attempts >= MOST_ATTEMPTS
  local earlier = redis.call("HGET", key("lost"), id)
  local workers = (earlier and earlier .. ", " or "") .. lease.worker
  if lease.attempts < max_attempts or not is_to_blame then
    lib.give_back(id, lease, lease.attempts)
    lib.replace_field(key("lost"), id, earlier, workers)
  else
    lib.drop_lease(id, lease)
    lib.hold(lease.payload, -1)
    local times = lease.attempts == 1 and "once" or lease.attempts .. " times"
    local detail = "leased " .. times .. " and never acked; lost by " .. workers
    lib.dead_letter(id, lease, "lease", detail, "", workers)
  end
end

-- Make delayed requests pending that are due; return how many.
function lib.promote(limit) -- seldom
  local due = redis.call("ZRANGEBYSCORE", key("delayed"), "-inf", now_ms, "LIMIT", 0, limit)
  for _, envelope in ipairs(due) do
    local rank, slot = lib.read_delayed(envelope)
    if rank then lib.try_zset("queue", slot) end
  end
  for _, envelope in ipairs(due) do
    local rank, slot, rest = lib.read_delayed(envelope)
    -- Its due time is in the past, so now is as good.
    lib.take_member(key("delayed"), now_ms, envelope)
    if rank then
      lib.put(string.sub(envelope, 1, 8), string.byte(envelope, 9), rank, slot, string.sub(envelope, rest))
      lib.count("delayed", -1)
    else
      lib.dead_letter_foreign(envelope)
    end
  end
  return #due
end

-- When to ask for a slot that opens after the horizon, or for the first suspect, whose slot may not be in `waiting`;
-- infinite for never. Half a horizon before a slot opens is early enough.
function lib.next_opening_ms(horizon_ms) -- policies
  local beyond_ms = "(" .. now_ms + horizon_ms
  local first = redis.call("ZRANGEBYSCORE", key("waiting"), beyond_ms, "+inf", "WITHSCORES", "LIMIT", 0, 1)
  local next_ms = tonumber(first[2] or math.huge) - horizon_ms / 2
  local suspect = redis.call("ZRANGE", key("suspects"), 0, 0)[1]
  local slot = suspect and lib.read_suspect(suspect)
  local opens_ms = slot and lib.with_limits().opens_ms(slot) or 0
  return opens_ms > now_ms and math.min(next_ms, opens_ms) or next_ms
end

-- When the first lease expires or delayed request is due; infinite for never.
function lib.first_due_ms()
  local expiry_ms = redis.call("ZRANGE", key("leases"), 0, 0, "WITHSCORES")[2]
  local due_ms = redis.call("ZRANGE", key("delayed"), 0, 0, "WITHSCORES")[2]
  return math.min(tonumber(expiry_ms or math.huge), tonumber(due_ms or math.huge))
end

-- Milliseconds until the first of these, if it is known, or until a slot opens; -1 for never.
function lib.next_due_ms(horizon_ms, first_due_ms)
  local next_ms = first_due_ms or lib.first_due_ms()
  if lib.read_policies().has_limits then next_ms = math.min(next_ms, lib.next_opening_ms(horizon_ms)) end
  return next_ms == math.huge and -1 or math.max(0, math.ceil(next_ms - now_ms))
end

function lib.forget_silent_workers(ttl_ms)
  local MAX_WORKERS, SILENT_TTLS = 10, 10
  local before_ms = now_ms - SILENT_TTLS * ttl_ms
  local silent = redis.call("ZRANGEBYSCORE", key("workers"), "-inf", before_ms, "LIMIT", 0, MAX_WORKERS)
  for _, name in ipairs(silent) do lib.forget_worker(name) end
end

-- Return expired leases to their queues or give them up, and make due requests pending, up to `limit` of each; return
-- the number of leases.
function lib.reap(max_attempts, limit) -- seldom
  local expired = redis.call("ZRANGEBYSCORE", key("leases"), "-inf", now_ms, "LIMIT", 0, limit)
  lib.try_queues(expired)
  local reaped = 0
  for _, id in ipairs(expired) do
    local lease = lib.read_lease(id)
    if lease then
      lib.give_back_lost(id, lease, max_attempts)
      reaped = reaped + 1
    else
      -- Another program has written this entry.
      redis.call("ZREM", key("leases"), id)
    end
  end
  lib.count("reaped", reaped)
  if lib.promote(limit) + reaped > 0 then lib.write_changes() end
  return reaped
end

local MOST_RETURN_MS = 10000

-- Workers that lived when the outage began, and were not heard of since the middle of it.
local function silent_workers(away_ms, ttl_ms)
  return redis.call("ZRANGEBYSCORE", key("workers"), now_ms - away_ms - ttl_ms, "(" .. now_ms - away_ms / 2)
end

-- Milliseconds for which nothing may be leased; nil if no worker is expected.
-- `away_ms`: how long this worker was cut off, 0 if it has reported everything; `until_ms`: the stored deadline.
function lib.awaits_returns(worker, away_ms, ttl_ms, until_ms) -- seldom
  until_ms = tonumber(until_ms or 0)
  -- If the clock was set back, nobody has to wait longer.
  local is_on = until_ms > now_ms and until_ms <= now_ms + MOST_RETURN_MS
  local begins = away_ms > 0 and not is_on
  if begins then
    is_on, until_ms = true, now_ms + math.min(MOST_RETURN_MS, ttl_ms)
    redis.call("UNLINK", key("returning"))
    lib.call_with_all("SADD", key("returning"), silent_workers(away_ms, ttl_ms))
  end
  if away_ms > 0 then
    redis.call("SADD", key("returning"), worker)
  else
    redis.call("SREM", key("returning"), worker)
  end
  -- Stored after the names: if an error comes before, the next call begins anew, so no worker is missed.
  if begins then lib.write_field("state", "returning_ms", string.format("%.0f", until_ms)) end
  if is_on and redis.call("SCARD", key("returning")) > 0 then return until_ms - now_ms end
  lib.write_field("state", "returning_ms")
  redis.call("UNLINK", key("returning"))
  lib.wake_hungry()
  return nil
end
