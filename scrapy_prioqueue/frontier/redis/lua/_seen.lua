-- Which fingerprints were seen; put behind `_times.lua` at load.

local BUCKETS, GROWTH, FILL = 64, 8, 384

-- What this script has stored so far; see `begin_storing`.
-- `failure` is what the server says of a set of fingerprints that it refuses: then nothing more is stored and the batch
-- is not applied; what was stored before stays, and the books balance.
local stored = {newly_seen = 0, accepted = 0, delayed = 0, failure = nil}

function lib.write_seen()
  if stored.newly_seen > 0 then redis.call("HINCRBY", lib.seen_key("state"), "seen", stored.newly_seen) end
end

-- True if the fingerprint is new; then it is marked seen. Levels fill up one after the other, each larger than the last
function lib.mark_seen(bits, member)
  local level, buckets, capacity = 0, BUCKETS, BUCKETS * FILL
  while stored.seen >= capacity do
    if redis.call("SISMEMBER", lib.seen_bucket(level, bits % buckets), member) == 1 then return false end
    level, buckets = level + 1, buckets * GROWTH
    capacity = capacity + buckets * FILL
  end
  local added = redis.pcall("SADD", lib.seen_bucket(level, bits % buckets), member)
  if type(added) == "table" then stored.failure = added.err end
  if added ~= 1 then return false end
  stored.seen, stored.newly_seen = stored.seen + 1, stored.newly_seen + 1
  return true
end
