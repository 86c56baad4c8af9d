-- Moving packed fingerprints into sets of integers.

-- The members of the fields that belong to a set, and their keys and fields; nil if one can't be read.
local function packed_members(level, number)
  local members, fields = {}, {}
  for bucket = number, level.buckets - 1, level.sets do
    local field = bucket % shape.group
    local name = string.format(level.key, (bucket - field) / shape.group)
    local value = redis.pcall("HGET", name, field)
    if type(value) == "table" then return nil end
    if value then
      fields[#fields + 1] = {name, field}
      for at = 1, #value, level.size do
        if string.sub(value, at, at + level.size - 1) ~= level.zeros then members[#members + 1] = integer(value, at) end
      end
    end
  end
  return members, fields
end

local function move_into_set(level, number)
  local members, fields = packed_members(level, number)
  if not members then return false end
  if #members > 0 then
    local added = redis.pcall("SADD", string.format(level.into, number), unpack(members))
    if type(added) == "table" then return false end
    redis.pcall("HINCRBY", lib.seen_key("state"), "seen_sets", added)
  end
  for _, place in ipairs(fields) do redis.pcall("HDEL", place[1], place[2]) end
  return true
end

-- Fill the sets before `due` from their fields. Refused writes are made up for by a later call and don't affect the
-- batch. The number is stored first: from then on only the sets count, so that no record is removed from a field but
-- found there.
function lib.move_seen(level, state, due) -- seldom
  if type(redis.pcall("HSET", state, "seen_moved", due)) == "table" then return end
  lib.write_levels(state, level.number_of_sets)
  for number = stored.moved, due - 1 do
    if not move_into_set(level, number) then
      redis.call("HSET", state, "seen_moved", number)
      return
    end
  end
end
