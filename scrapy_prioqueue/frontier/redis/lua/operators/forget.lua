-- Forget fingerprints, so that requests with them may be pushed again.
-- guarantee: all or nothing; pending, leased and dead requests don't change.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] fingerprints, as in `lib/seen.lua`
-- reply: indexes of those that were seen, counted from 0
-- cost: O(levels) per fingerprint
-- flags: allow-oom

-- Returns whether it was there.
local function take_out(fingerprint)
  local level, name, field, value, at, is_found = locate(fingerprint)
  if not level then return false end
  if not level.is_packed then
    if redis.call("SREM", name, field) == 0 then return false end
    lib.note_undo("SADD", name, field)
    return true
  end
  if not is_found then return false end
  if #value >= level.full then
    -- A field that was full keeps its length.
    write(level, name, field, value, at, level.zeros)
  elseif #value == level.size then
    lib.note_undo("HSET", name, field, value)
    redis.call("HDEL", name, field)
  else
    lib.note_undo("HSET", name, field, value)
    redis.call("HSET", name, field, string.sub(value, 1, at - 1) .. string.sub(value, at + level.size))
  end
  return true
end

local forgotten = {}
lib.read_seen()
if lib.has_times() then lib.begin_timed() else read_shape() end
lib.all_or_nothing(function()
  for i = 2, #ARGV do
    if (stored.take_out or take_out)(ARGV[i]) then forgotten[#forgotten + 1] = i - 2 end
  end
  if not stored.take_out then stored.newly_seen = -#forgotten end
  lib.write_seen()
end)
return forgotten
