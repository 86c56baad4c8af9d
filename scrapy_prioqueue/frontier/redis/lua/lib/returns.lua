-- After an outage: the workers that have not yet reported what they did meanwhile.

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
