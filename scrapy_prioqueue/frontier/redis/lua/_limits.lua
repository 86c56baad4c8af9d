-- When a slot may be served, and what serving it costs; put behind `_policies.lua` at load.

-- A token bucket in the form of a clock: `paced` holds for each slot the time before which it may not be served again
-- if it has a burst of one; with a burst of n it may be n - 1 intervals earlier. policy.py explains the numbers.
local STRETCH, CATCH_UP_MS, LATE_MS = 1.01, 50, 100

local limits

function lib.with_limits() -- seldom
  if limits then return limits end
  limits = {}

  -- No slot of ours is longer: looking up all its suffixes would cost the square of its length.
  local MOST_BYTES = 1024

  -- The fields of `limits` that are about a slot, the most specific first; what an operator says (`!`) goes before.
  local function limit_fields(slot)
    local fields = {"!" .. slot, slot}
    local has_suffixes = #slot <= MOST_BYTES and lib.has_suffixes("limits")
    local dot = has_suffixes and string.find(slot, ".", 1, true)
    while dot do
      local pattern = "*" .. string.sub(slot, dot)
      fields[#fields + 1], fields[#fields + 2] = "!" .. pattern, pattern
      dot = string.find(slot, ".", dot + 1, true)
    end
    fields[#fields + 1], fields[#fields + 2] = "!*", "*"
    return fields
  end

  -- The limit of a slot: milliseconds of delay as entries say, and as latency says; of the interval in force; and more.
  function limits.limit_of(slot)
    local limit = lib.merged(lib.entries_of("limits", limit_fields(slot)), {"delay", "concurrency", "burst"})
    local learnt, has = {}, lib.read_policies()
    local throttle = has.throttle
    if has.has_delays or has.awaits_delays then
      learnt = redis.call("HMGET", key("delays"), "c" .. slot, "t" .. slot)
    end
    limit.delay_ms, limit.throttled_ms = (limit.delay or 0) * 1000, 0
    if throttle then limit.throttled_ms = tonumber(learnt[2] or throttle.start_delay * 1000) end
    local bounded_ms = throttle and math.min(limit.throttled_ms, throttle.max_delay * 1000) or 0
    limit.interval = math.max(limit.delay_ms, tonumber(learnt[1] or 0), bounded_ms) * STRETCH
    limit.concurrency, limit.burst = limit.concurrency or 0, limit.burst or 1
    if has.awaits_delays and not learnt[1] then limit.concurrency = 1 end
    return limit
  end

  -- What this script knows of slots, and by how much it has changed how many requests of them are out.
  local clocks, started = {}, {}

  function limits.clock_of(slot)
    local clock = clocks[slot]
    if not clock then
      clock = {limit = limits.limit_of(slot)}
      clock.paced = tonumber(redis.call("ZSCORE", key("paced"), slot) or 0)
      clock.was_paced = clock.paced
      clock.running = clock.limit.concurrency > 0 and tonumber(redis.call("HGET", key("running"), slot) or 0)
      clocks[slot] = clock
    end
    return clock
  end

  -- The delay of a slot was learnt anew.
  function limits.relearn(slot)
    if clocks[slot] then clocks[slot].limit = limits.limit_of(slot) end
  end

  -- When a slot may be served: some time that may have passed, or infinity where it is at its concurrency.
  function limits.opens_ms(slot)
    local clock = limits.clock_of(slot)
    local limit = clock.limit
    if clock.running and clock.running + (started[slot] or 0) >= limit.concurrency then return math.huge end
    return clock.paced - (limit.burst - 1) * limit.interval
  end

  -- How many requests of a slot may start within so long, its concurrency aside.
  function limits.may_start_within(slot, span_ms)
    local clock = limits.clock_of(slot)
    local interval = clock.limit.interval
    local first_ms = math.max(clock.paced, now_ms) - (clock.limit.burst - 1) * interval
    if first_ms > now_ms + span_ms then return 0 end
    return interval == 0 and math.huge or math.floor((now_ms + span_ms - first_ms) / interval) + 1
  end

  -- A request of the slot is handed out, to be started then.
  function limits.charge(slot, start_ms)
    local clock = limits.clock_of(slot)
    local interval = clock.limit.interval
    started[slot] = (started[slot] or 0) + 1
    if interval > 0 then
      clock.paced = math.max(clock.paced, start_ms - math.min(CATCH_UP_MS, interval / 2)) + interval
      clock.is_paced = true
    end
  end

  -- A lease has ended; returns whether that may let another one begin.
  function limits.uncharge(slot)
    local is_first = not started[slot]
    started[slot] = (started[slot] or 0) - 1
    return is_first and redis.call("ZSCORE", key("waiting"), slot) == "inf"
  end

  function limits.close(slot, wait_ms)
    local clock = limits.clock_of(slot)
    local limit = clock.limit
    clock.paced = math.max(clock.paced, now_ms + wait_ms + (limit.burst - 1) * limit.interval)
    clock.is_paced = true
  end

  function limits.write()
    for slot, clock in pairs(clocks) do
      if clock.is_paced then
        lib.note_undo("ZADD", key("paced"), clock.was_paced, slot)
        redis.call("ZADD", key("paced"), clock.paced, slot)
      end
    end
    for slot, change in pairs(started) do
      if change ~= 0 then
        local running = redis.call("HINCRBY", key("running"), slot, change)
        lib.note_undo("HINCRBY", key("running"), slot, -change)
        if running <= 0 then redis.call("HDEL", key("running"), slot) end
      end
    end
    limits.forget()
  end

  function limits.forget()
    clocks, started = {}, {}
  end

  -- From now on slots have limits: what is out has to be counted, which nobody did before.
  function limits.enable()
    if lib.read_policies().has_limits then return end
    redis.call("HSET", KEYS[1], "has_limits", "1")
    redis.call("UNLINK", key("running"), key("paced"))
    policies = nil
    lib.begin_count("limits")
  end

  -- Limits that only pauses need, for which sites have asked, have an end. It comes some time after the last pause, as
  -- a site that asks for one may ask again. Called where what needs limits has changed.
  function limits.set_end()
    local LINGER_MS = 10000
    local has = lib.read_policies()
    if not has.has_limits then return end
    local is_needed = has.has_delays or has.throttle or has.awaits_delays or redis.call("HLEN", key("limits")) > 0
    local last_ms = tonumber(redis.call("ZRANGE", key("closed"), -1, -1, "WITHSCORES")[2] or 0)
    has.limits_end_ms = not is_needed and math.ceil(math.max(now_ms, last_ms + LINGER_MS)) or nil
    redis.call("HSET", KEYS[1], "has_limits", is_needed and "1" or string.format("%.0f", has.limits_end_ms))
  end

  -- End them if no slot waits any more. What is left of them is dropped when they begin again, too.
  function limits.finish()
    if policies.counting or redis.call("ZCARD", key("waiting")) > 0 then return end
    lib.note_undo("HSET", KEYS[1], "has_limits", string.format("%.0f", policies.limits_end_ms))
    redis.call("HDEL", KEYS[1], "has_limits")
    redis.pcall("UNLINK", key("running"), key("paced"), key("closed"))
    policies.has_limits, policies.limits_end_ms = false, nil
    limits.forget()
  end

  -- A lease that began without limits is known from now on.
  function limits.add(slot)
    started[slot] = (started[slot] or 0) + 1
  end

  -- Limits have changed: the next exchanges look at each slot that waits, whatever it has waited for, and at those that
  -- were served lately; see `look_again`.
  function limits.refresh()
    clocks, whole = {}, {}
    redis.call("HSET", KEYS[1], "reopen", "waiting -inf ")
  end

  -- Writes without effect; they drop, on the way, the clocks that have no say any more.
  function limits.try()
    lib.drop_past("paced", "(" .. now_ms - CATCH_UP_MS)
    for _, noun in ipairs({"waiting", "paced"}) do
      redis.call("ZREM", key(noun), NOBODY)
      redis.call("ZSCORE", key(noun), NOBODY)
      redis.call("ZRANK", key(noun), NOBODY)
    end
    redis.call("ZRANGEBYSCORE", key("waiting"), 0, 0, "LIMIT", 0, 0)
    for _, noun in ipairs({"running", "delays", "limits"}) do
      redis.call("HDEL", key(noun), NOBODY)
      redis.call("HMGET", key(noun), NOBODY)
      redis.call("HLEN", key(noun))
    end
  end

  return limits
end

function lib.may_be_served(slot)
  return not lib.read_policies().has_limits or lib.with_limits().opens_ms(slot) <= now_ms
end
