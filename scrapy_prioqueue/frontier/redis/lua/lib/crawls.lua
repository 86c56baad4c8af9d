-- Beginning a crawl.

-- Fields of the state and keys that are dropped when a crawl begins. Only `clear` drops lanes, since it finds the
-- queues by them.
local FORGOTTEN_FIELDS = {
  "cleaner", "cleaning_ms", "scope", "is_clear", "ended_ms", "is_unjoined", "paused", "drained", "has_stops", "policy",
  "has_limits", "has_delays", "awaits_delays", "throttle", "has_budgets", "lanes", "weights", "has_marks",
  "high_water", "low_water", "discovery", "is_flooded", "flood_mark", "flood_width", "flood_ms",
  "flood_held", "pending_limit", "memory_high_water", "policy_parts", "policy_ms", "policy_change",
  "memory_high", "reopen", "delays_cursor", "counting", "spider", "has_refused", "returning_ms", "ordered_ms",
  "stop_reason", "letters_dropped"}
local FORGOTTEN_KEYS = {
  "stats", "workers", "busy", "hungry", "sessions", "info", "claims", "stops", "work", "pace", "kept",
  "limits", "budgets", "used", "delays", "paced", "closed", "running", "passes",
  "counted:limits", "counted:budgets", "returning", "ordered", "history", "numbers"}

-- Return values of the state by field, false for a missing one.
function lib.named_fields(names)
  local values, found = redis.call("HMGET", KEYS[1], unpack(names)), {}
  for i, name in ipairs(names) do found[name] = values[i] end
  return found
end

-- Whether the client that clears or imports was not heard of for so long that it counts as lost.
function lib.is_stale(cleaning_ms)
  return math.abs(now_ms - tonumber(cleaning_ms)) >= 30000
end

function lib.is_own_name(name)
  return name == "" or "{prioqueue:" .. name .. "}:" == prefix
end

-- The shape of a frontier's fingerprints, and their number; nil if another shape may be chosen: there are none, and no
-- living worker uses it. Workers of another frontier aren't known, so its shape is always kept.
local function kept_shape(name, is_alone)
  local is_own = lib.is_own_name(name)
  local state = is_own and KEYS[1] or "{prioqueue:" .. name .. "}:state"
  local found = redis.call("HMGET", state, "seen_shape", "seen")
  local seen = tonumber(found[2] or 0)
  if not found[1] or (is_own and is_alone and seen == 0) then return nil end
  return found[1], seen
end

-- The same, if it differs from the wanted shape in more than its numbers.
function lib.other_shape(name, wanted, is_alone)
  local kind, found, seen = "^%a+ %d", kept_shape(name, is_alone)
  if found and string.match(found, kind) ~= string.match(wanted, kind) then return found, seen end
end

-- If another frontier stores the fingerprints, this one keeps a copy of their shape, to restore it.
function lib.keep_shape(name, wanted, is_alone)
  local shape_text = kept_shape(name, is_alone) or wanted
  redis.call("HSET", KEYS[1], "seen_shape", shape_text)
  if not lib.is_own_name(name) then redis.call("HSET", lib.seen_key("state"), "seen_shape", shape_text) end
end

-- Drop what begins anew with a crawl.
function lib.forget_crawl()
  local names = {}
  for i, noun in ipairs(FORGOTTEN_KEYS) do names[i] = key(noun) end
  redis.call("UNLINK", unpack(names))
  redis.call("HDEL", KEYS[1], unpack(FORGOTTEN_FIELDS))
end

-- Workers of an earlier crawl don't belong to this one. `fields` are further fields of the state and their values.
function lib.begin_crawl(crawl_id, fields)
  local epoch = redis.call("HINCRBY", KEYS[1], "epoch", 1)
  lib.forget_crawl()
  -- The last effect, so that an open crawl has no data of an earlier one.
  redis.call("HSET", KEYS[1], "phase", "open", "crawl_id", crawl_id, "created_ms", now_ms, "clock_ms", now_ms,
    unpack(fields))
  return epoch
end
