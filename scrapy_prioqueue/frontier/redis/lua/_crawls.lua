-- How a crawl begins; put behind the other libraries at load.

-- What of the state, and which keys, begin anew with a crawl.
local FORGOTTEN_FIELDS = {
  "cleaner", "cleaning_ms", "scope", "is_clear", "ended_ms", "is_unjoined", "paused", "drained", "has_stops", "policy",
  "has_limits", "has_delays", "awaits_delays", "throttle", "has_budgets", "lanes", "unsorted", "weights", "has_marks",
  "high_water", "low_water", "discovery", "is_flooded", "flood_mark", "flood_width", "flood_ms",
  "memory_high"}
local FORGOTTEN_KEYS = {
  "stats", "workers", "busy", "hungry", "sessions", "info", "claims", "stops", "work", "pace",
  "limits", "budgets", "used", "delays", "paced", "closed", "running", "waiting", "passes"}

function lib.is_own_name(name)
  return name == "" or "{prioqueue:" .. name .. "}:" == prefix
end

-- How the fingerprints of a frontier are kept, if that is not as this shape says; its numbers may be others.
function lib.other_shape(name, wanted)
  local state = lib.is_own_name(name) and KEYS[1] or "{prioqueue:" .. name .. "}:state"
  local found = redis.call("HMGET", state, "seen_shape", "seen")
  if not (found[1] and found[2]) then return nil end
  local kind = "^%a+ %d"
  if string.match(found[1], kind) ~= string.match(wanted, kind) then return found[1] end
end

-- The frontier in which fingerprints are kept has a shape as long as it has any; this one has a copy, to give it back.
function lib.keep_shape(wanted)
  local home = lib.seen_key("state")
  local found = redis.call("HMGET", home, "seen_shape", "seen")
  local kept = found[1] and found[2] and found[1] or wanted
  redis.call("HSET", KEYS[1], "seen_shape", kept)
  if home ~= KEYS[1] then redis.call("HSET", home, "seen_shape", kept) end
end

-- Workers of an earlier crawl have no part in this one. `fields` are further fields of the state and their values.
function lib.begin_crawl(crawl_id, fields)
  local epoch = redis.call("HINCRBY", KEYS[1], "epoch", 1)
  redis.call("HDEL", KEYS[1], unpack(FORGOTTEN_FIELDS))
  redis.call("HSET", KEYS[1], "phase", "open", "crawl_id", crawl_id, "created_ms", now_ms, unpack(fields))
  for _, noun in ipairs(FORGOTTEN_KEYS) do redis.call("UNLINK", key(noun)) end
  return epoch
end
