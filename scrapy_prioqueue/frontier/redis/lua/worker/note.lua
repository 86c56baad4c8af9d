-- Store what a worker has learned about slots, such as their latency, and about the server.
-- guarantee: none is needed; repeating a note does no harm.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3..] triples:
--   L slot latency_ms,is_success    latency of a response; 1 or 0: that of a failed one doesn't shorten a delay
--   W slot wait_ms                  its site asks for a pause
--   C slot delay_ms,starts_now      `Crawl-delay` of its robots.txt; 1 or 0: a request starts now
--   H slot ""                       a leased page waits for robots.txt in a worker, so the delay counts from now
--   M "" is_high                    whether the server's memory is above the mark, 1 or 0
--   K worker kept                   requests that stay in the worker, JSON; empty for none
-- reply: code: 0 fine; 1 other crawl; 2 unknown session
-- cost: O(log n) per note
-- flags: allow-oom

local refusal = lib.refusal_of(lib.read_state("epoch", "phase"))
if refusal then return {refusal} end

-- If delays of more slots are known, those of some idle ones are dropped. A worker reports a crawl delay again after
-- half of the time after which a slot counts as idle (`politeness.py`), and latency with each page.
local MOST_DELAYS, LOOKED_AT, IDLE_PACES = 20000, 8, 7

local function is_idle(slot)
  if redis.call("EXISTS", key("queue", slot)) == 1 or redis.call("HEXISTS", key("running"), slot) == 1 then
    return false
  end
  for earlier = 0, IDLE_PACES do
    if redis.call("HEXISTS", lib.served_key(earlier), slot) == 1 then return false end
  end
  return tonumber(redis.call("ZSCORE", key("paced"), slot) or 0) < now_ms
end

local function forget_some(slot_now)
  if redis.call("HLEN", key("delays")) <= MOST_DELAYS then return end
  local cursor = redis.call("HGET", KEYS[1], "delays_cursor") or "0"
  local found, fields = unpack(redis.call("HSCAN", key("delays"), cursor, "COUNT", LOOKED_AT))
  for i = 1, #fields, 2 do
    local slot = string.sub(fields[i], 2)
    if slot ~= slot_now and is_idle(slot) then redis.call("HDEL", key("delays"), fields[i]) end
  end
  redis.call("HSET", KEYS[1], "delays_cursor", found)
end

-- Store the delay of a slot, under the letter of its source.
local function learn(letter, slot, delay_ms)
  if redis.call("HSET", key("delays"), letter .. slot, delay_ms) == 1 then forget_some(slot) end
  redis.call("HSET", KEYS[1], "has_delays", "1")
  lib.read_policies().has_delays = true
  lib.with_limits().relearn(slot)
end

-- The formula of Scrapy's AutoThrottle (scrapy/extensions/throttle.py), for the fleet instead of a process. The slot's
-- limit isn't considered, since it may change; the longer of the two delays is used anyway.
local function throttle(slot, latency_ms, is_success)
  local settings = lib.read_policies().throttle
  if not settings then return end
  local limit = lib.with_limits().limit_of(slot)
  local target_ms = latency_ms / settings.target_concurrency
  local delay_ms = math.min(math.max(target_ms, (limit.throttled_ms + target_ms) / 2), settings.max_delay * 1000)
  if is_success or delay_ms > limit.throttled_ms then
    learn("t", slot, string.format("%.17g", delay_ms))
    -- The start of a burst depends on the delay.
    if limit.burst > 1 then lib.touch_all(slot) end
  end
end

-- Count the delay of a slot from now, since its last page starts no earlier.
local function start_anew(slot)
  local interval = lib.with_limits().clock_of(slot).limit.interval
  if interval > 0 then lib.with_limits().close(slot, interval) end
end

local has_asked = false
local TAKE = {
  L = function(slot, value)
    local latency_ms, is_success = string.match(value, "^(%d+),([01])$")
    throttle(slot, tonumber(latency_ms), is_success == "1")
  end,
  W = function(slot, value)
    lib.enable_limits()
    lib.with_limits().close(slot, tonumber(value))
    has_asked = true
    redis.call("ZADD", key("closed"), "GT", now_ms + value, slot)
    lib.touch_all(slot)
  end,
  C = function(slot, value)
    lib.enable_limits()
    local delay_ms, starts_now = string.match(value, "^(%d+),?([01]?)$")
    learn("c", slot, delay_ms)
    if starts_now == "1" then start_anew(slot) end
    has_asked = true
    -- It may have been served one at a time so far.
    lib.touch_all(slot)
  end,
  H = function(slot)
    if not lib.read_policies().has_limits then return end
    start_anew(slot)
    lib.touch_all(slot)
  end,
  K = function(worker, value)
    lib.write_field("kept", worker, value ~= "" and value)
  end,
  M = function(_, value)
    lib.write_field("state", "memory_high", value == "1" and "1")
  end,
}

-- The first write needs no memory.
redis.call("ZREM", key("hungry"), NOBODY)
lib.try_writes(false, ARGV[2])
lib.try_limits()
lib.try_hash("kept")
lib.drop_past("closed", now_ms)
for i = 3, #ARGV, 3 do TAKE[ARGV[i]](ARGV[i + 1], ARGV[i + 2]) end
if has_asked then lib.set_end_of_limits() end
if lib.write_changes() then lib.wake_hungry() end
return {OK}
