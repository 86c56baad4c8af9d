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

-- Workers of an earlier crawl have no part in this one. `fields` are further fields of the state and their values.
function lib.begin_crawl(crawl_id, fields)
  local epoch = redis.call("HINCRBY", KEYS[1], "epoch", 1)
  redis.call("HDEL", KEYS[1], unpack(FORGOTTEN_FIELDS))
  redis.call("HSET", KEYS[1], "phase", "open", "crawl_id", crawl_id, "created_ms", now_ms, unpack(fields))
  for _, noun in ipairs(FORGOTTEN_KEYS) do redis.call("UNLINK", key(noun)) end
  return epoch
end
