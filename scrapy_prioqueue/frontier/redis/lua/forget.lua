-- Forget fingerprints, so that what has them may be pushed again.
-- guarantee: all or nothing; nothing that is pending, leased or dead changes.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] fingerprints, as `_seen.lua` takes them
-- reply: indexes of those that were seen, counted from 0
-- cost: O(levels) per fingerprint
-- flags: allow-oom

-- True if it was there, and had not expired.
local function take_out(level, name, field, value, at, is_found)
  if not level then return false end
  if not level.is_packed then
    if redis.call("SREM", name, field) == 0 then return false end
    lib.note_undo("SADD", name, field)
    return true
  end
  if not is_found then return false end
  local has_expired = shape.has_times and number_at(value, at + level.size) <= now_s
  if #value >= level.full then
    -- A field that has been full stays as long as it is.
    write(level, name, field, value, at, string.rep("\0", level.width))
  elseif #value == level.width then
    lib.note_undo("HSET", name, field, value)
    redis.call("HDEL", name, field)
  else
    lib.note_undo("HSET", name, field, value)
    redis.call("HSET", name, field, string.sub(value, 1, at - 1) .. string.sub(value, at + level.width))
  end
  stored.newly_seen = stored.newly_seen - (has_expired and 1 or 0)
  return not has_expired
end

local forgotten = {}
lib.read_seen()
read_shape()
lib.all_or_nothing(function()
  for i = 2, #ARGV do
    if take_out(place_of(ARGV[i])) then forgotten[#forgotten + 1] = i - 2 end
  end
  stored.newly_seen = stored.newly_seen - #forgotten
  lib.write_seen()
end)
return forgotten
