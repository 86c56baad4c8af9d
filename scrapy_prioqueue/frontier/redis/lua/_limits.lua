-- When a slot may be served, and what serving it costs; put behind `_trials.lua` at load.

-- A token bucket in the form of a clock: `paced` holds for each slot the time before which it may not be served again
-- if it has a burst of one; with a burst of n it may be n - 1 intervals earlier. policy.py explains the numbers.
local STRETCH, LATE_MS = 1.01, 100

-- The fields of `limits` that are about a slot, the most specific first; what an operator says (`!`) goes before.
local function limit_fields(slot)
  local fields = {"!" .. slot, slot}
  local dot = string.find(slot, ".", 1, true)
  while dot do
    local pattern = "*" .. string.sub(slot, dot)
    fields[#fields + 1], fields[#fields + 2] = "!" .. pattern, pattern
    dot = string.find(slot, ".", dot + 1, true)
  end
  fields[#fields + 1], fields[#fields + 2] = "!*", "*"
  return fields
end

-- The limit of a slot: seconds of delay as its entries say, milliseconds of interval in force, concurrency, burst.
local function limit_of(slot)
  local entries = redis.call("HMGET", key("limits"), unpack(limit_fields(slot)))
  local limit = merged(entries, {"delay", "concurrency", "burst"})
  local learnt = redis.call("HMGET", key("delays"), "c" .. slot, "t" .. slot)
  local throttle = read_policies().throttle
  limit.own_delay_ms = math.max((limit.delay or 0) * 1000, tonumber(learnt[1] or 0))
  if throttle then
    limit.throttled_ms = math.min(tonumber(learnt[2] or throttle.start_delay * 1000), throttle.max_delay * 1000)
  end
  limit.interval = math.max(limit.own_delay_ms, limit.throttled_ms or 0) * STRETCH
  limit.concurrency, limit.burst = limit.concurrency or 0, limit.burst or 1
  return limit
end

-- What this script knows of slots: `paced`, `running`, and by how much it has changed the latter.
local clocks = {}

local function clock_of(slot)
  local clock = clocks[slot]
  if not clock then
    clock = {limit = limit_of(slot), started = 0}
    clock.paced = tonumber(redis.call("ZSCORE", key("paced"), slot) or 0)
    clock.running = tonumber(redis.call("HGET", key("running"), slot) or 0)
    clocks[slot] = clock
  end
  return clock
end

-- When a slot may be served: some time that may have passed, or infinity where it is at its concurrency.
local function opens_ms(clock)
  local limit = clock.limit
  if limit.concurrency > 0 and clock.running + clock.started >= limit.concurrency then return math.huge end
  return clock.paced - (limit.burst - 1) * limit.interval
end

local function may_be_served(slot)
  return not read_policies().has_limits or opens_ms(clock_of(slot)) <= now_ms
end

-- A request of the slot is handed out, to be started then.
local function charge(slot, start_ms)
  local clock = clock_of(slot)
  local interval = clock.limit.interval
  clock.started = clock.started + 1
  if interval > 0 then
    clock.paced = math.max(clock.paced, start_ms - math.min(CATCH_UP_MS, interval / 2)) + interval
    clock.is_paced = true
  end
end

local function uncharge(slot)
  local clock = clock_of(slot)
  clock.started = clock.started - 1
end

local function close_slot(slot, wait_ms)
  local clock = clock_of(slot)
  clock.paced = math.max(clock.paced, now_ms + wait_ms + (clock.limit.burst - 1) * clock.limit.interval)
  clock.is_paced = true
end

local function write_clocks()
  for slot, clock in pairs(clocks) do
    if clock.is_paced then redis.call("ZADD", key("paced"), clock.paced, slot) end
    if clock.started ~= 0 and redis.call("HINCRBY", key("running"), slot, clock.started) <= 0 then
      redis.call("HDEL", key("running"), slot)
    end
    clock.running, clock.started, clock.is_paced = math.max(0, clock.running + clock.started), 0, false
  end
end

-- From now on slots have limits: count what is out, which nobody did before.
local function enable_limits()
  if read_policies().has_limits then return end
  redis.call("HSET", KEYS[1], "has_limits", "1")
  policies = nil
  redis.call("DEL", key("running"))
  for _, value in ipairs(redis.call("HVALS", key("leased"))) do
    redis.call("HINCRBY", key("running"), cmsgpack.unpack(value)[3], 1)
  end
end

-- Limits have changed: the next exchanges look at each slot that waits, whatever it has waited for.
local function refresh_waiting()
  redis.call("ZUNIONSTORE", key("waiting"), 1, key("waiting"), "WEIGHTS", 0)
end
