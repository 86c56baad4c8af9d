-- When a slot may be served, the effect of serving it, and how limits begin, change and end.

-- A token bucket as a clock: `paced` is the time before which a slot with a burst of one may not be served again; with
-- a burst of n it may be n - 1 intervals earlier. policy.py explains the numbers.
local STRETCH, CATCH_UP_MS, LATE_MS = 1.01, 50, 100

local limits

function lib.with_limits() -- policies
  if limits then return limits end
  limits = {}

  -- Slots have at most this length; looking up all suffixes of a longer one would cost the square of its length.
  local MOST_BYTES = 1024

  -- The fields of `limits` that apply to a slot, the most specific first; an operator's (`!`) precedes that of
  -- settings.
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

  -- The limit of a slot, with its delay in milliseconds by entries and by latency, and the interval in force.
  function limits.limit_of(slot)
    local limit = lib.merged(lib.entries_of("limits", limit_fields(slot)))
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

  -- State of slots that this script has read, and its changes of their numbers of leases.
  local clocks, started = {}, {}

  -- Read the state of some slots, no more than one call can read together.
  function limits.read_clocks(slots)
    local unread = {}
    for _, slot in ipairs(slots) do
      if not clocks[slot] then unread[#unread + 1] = slot end
    end
    if not unread[1] then return end
    local paced, running = redis.call("ZMSCORE", key("paced"), unpack(unread)), nil
    for i, slot in ipairs(unread) do
      local paced_ms = tonumber(paced[i] or 0)
      clocks[slot] = {limit = limits.limit_of(slot), paced = paced_ms, was_paced = paced_ms}
      if clocks[slot].limit.concurrency > 0 then
        running = running or redis.call("HMGET", key("running"), unpack(unread))
        clocks[slot].running = tonumber(running[i] or 0)
      end
    end
  end

  function limits.clock_of(slot)
    if not clocks[slot] then limits.read_clocks({slot}) end
    return clocks[slot]
  end

  -- Update the limit of a slot after its delay has changed.
  function limits.relearn(slot)
    local clock = clocks[slot]
    if not clock then return end
    clock.limit = limits.limit_of(slot)
    -- Until its crawl delay was known the slot was served one request at a time.
    if clock.limit.concurrency == 0 then clock.running = nil end
  end

  -- When a slot may be served; may be in the past, or infinite if it is at its concurrency.
  function limits.opens_ms(slot)
    local clock = limits.clock_of(slot)
    local limit = clock.limit
    if clock.running and clock.running + (started[slot] or 0) >= limit.concurrency then return math.huge end
    return clock.paced - (limit.burst - 1) * limit.interval
  end

  -- How many requests of a slot may start within this time, not considering its concurrency.
  function limits.may_start_within(slot, span_ms)
    local clock = limits.clock_of(slot)
    local interval = clock.limit.interval
    local first_ms = math.max(clock.paced, now_ms) - (clock.limit.burst - 1) * interval
    if first_ms > now_ms + span_ms then return 0 end
    return interval == 0 and math.huge or math.floor((now_ms + span_ms - first_ms) / interval) + 1
  end

  -- Count a request of the slot that is leased and will start at that time.
  function limits.charge(slot, start_ms)
    local clock = limits.clock_of(slot)
    local interval = clock.limit.interval
    started[slot] = (started[slot] or 0) + 1
    if interval > 0 then
      clock.paced = math.max(clock.paced, start_ms - math.min(CATCH_UP_MS, interval / 2)) + interval
      clock.is_paced = true
    end
  end

  -- Count the end of a lease, which may open a full slot.
  local ended = {}
  function limits.uncharge(slot)
    if not started[slot] then ended[#ended + 1] = slot end
    started[slot] = (started[slot] or 0) - 1
  end

  -- Update the positions of full slots if one of their leases has ended.
  function limits.touch_ended()
    if not ended[1] then return end
    for i, opens_ms in ipairs(redis.call("ZMSCORE", key("waiting"), unpack(ended))) do
      if opens_ms == "inf" then lib.touch_all(ended[i]) end
    end
    ended = {}
  end

  function limits.close(slot, wait_ms)
    local clock = limits.clock_of(slot)
    local limit = clock.limit
    clock.paced = math.max(clock.paced, now_ms + wait_ms + (limit.burst - 1) * limit.interval)
    clock.is_paced = true
  end

  local function write_paced()
    local paced, before = {}, {}
    for slot, clock in pairs(clocks) do
      if clock.is_paced then
        local length = #paced
        paced[length + 1], paced[length + 2] = clock.paced, slot
        before[length + 1], before[length + 2] = clock.was_paced, slot
      end
    end
    if not paced[1] then return end
    lib.note_undo("lib.call_with_all", "ZADD", key("paced"), before)
    lib.call_with_all("ZADD", key("paced"), paced)
  end

  -- No more slots than one call can read together.
  local function write_running(slots)
    local set, gone, set_before, gone_before = {}, {}, {}, {}
    for i, before in ipairs(redis.call("HMGET", key("running"), unpack(slots))) do
      local slot = slots[i]
      local running = tonumber(before or 0) + started[slot]
      local list = before and set_before or gone_before
      list[#list + 1] = slot
      if before then list[#list + 1] = before end
      list = running > 0 and set or gone
      list[#list + 1] = slot
      if running > 0 then list[#list + 1] = running end
    end
    lib.note_undo("lib.call_with_all", "HSET", key("running"), set_before)
    lib.note_undo("lib.call_with_all", "HDEL", key("running"), gone_before)
    lib.call_with_all("HSET", key("running"), set)
    lib.call_with_all("HDEL", key("running"), gone)
  end

  function limits.write()
    local MOST, slots = 1000, {}
    write_paced()
    for slot, change in pairs(started) do
      if change ~= 0 then slots[#slots + 1] = slot end
      if #slots == MOST then
        write_running(slots)
        slots = {}
      end
    end
    if slots[1] then write_running(slots) end
    limits.forget()
  end

  function limits.forget_clocks()
    clocks = {}
  end

  function limits.forget()
    clocks, started, ended = {}, {}, {}
  end

  -- Count a lease that began before limits did.
  function limits.add(slot)
    started[slot] = (started[slot] or 0) + 1
  end

  return limits
end

function lib.may_be_served(slot)
  return not lib.read_policies().has_limits or lib.with_limits().opens_ms(slot) <= now_ms
end

-- Switch limits on: current leases must be counted, since nobody has counted them so far.
function lib.enable_limits() -- seldom
  if lib.read_policies().has_limits then return end
  redis.call("HSET", KEYS[1], "has_limits", "1")
  redis.call("UNLINK", key("running"), key("paced"))
  policies = nil
  lib.begin_count("limits")
end

-- If only pauses that sites have asked for need limits, set when these end: some time after the last pause, since
-- such a site may ask again. Called when the need for limits has changed.
function lib.set_end_of_limits() -- seldom
  local LINGER_MS = 10000
  local has = lib.read_policies()
  if not has.has_limits then return end
  local is_needed = has.has_delays or has.throttle or has.awaits_delays or redis.call("HLEN", key("limits")) > 0
  local last_ms = tonumber(redis.call("ZRANGE", key("closed"), -1, -1, "WITHSCORES")[2] or 0)
  has.limits_end_ms = not is_needed and math.ceil(math.max(now_ms, last_ms + LINGER_MS)) or nil
  redis.call("HSET", KEYS[1], "has_limits", is_needed and "1" or string.format("%.0f", has.limits_end_ms))
end

-- Switch limits off if no slot waits any more. Their remaining state is dropped when they are switched on again.
function lib.finish_limits() -- seldom
  if policies.counting or redis.call("ZCARD", key("waiting")) > 0 then return end
  lib.note_undo("HSET", KEYS[1], "has_limits", string.format("%.0f", policies.limits_end_ms))
  redis.call("HDEL", KEYS[1], "has_limits")
  redis.pcall("UNLINK", key("running"), key("paced"), key("closed"))
  policies.has_limits, policies.limits_end_ms = false, nil
  lib.with_limits().forget()
end

-- After a change of limits, let the next exchanges check all waiting slots, and those that were served lately; see
-- `look_again`.
function lib.refresh_limits() -- seldom
  lib.with_limits().forget_clocks()
  whole = {}
  redis.call("HSET", KEYS[1], "reopen", "waiting -inf ")
  lib.set_end_of_limits()
end

-- Writes without effect; on the way they drop start times that don't matter any more.
function lib.try_limits() -- policies
  lib.drop_past("paced", "(" .. now_ms - CATCH_UP_MS)
  lib.try_each({"waiting", "paced", "ready"}, {"running", "delays", "limits", "turns"})
  redis.call("ZMSCORE", key("paced"), NOBODY)
  redis.call("ZSCORE", key("waiting"), NOBODY)
  redis.call("ZRANK", key("waiting"), NOBODY)
  redis.call("HMGET", key("running"), NOBODY)
  redis.call("HLEN", key("limits"))
end
