-- The set of seen fingerprints.
-- A record that finds its field full goes to the next level. Fields that were full keep their length, so a record that
-- is missing in a shorter field is in no later level. A fingerprint is passed as a hash of 12 bytes: the first four
-- choose the field, lowest first, and the last ones are the record. After it may follow, in decimal, its own number of
-- seconds after which it is new again. For times see `lib/timed.lua`.

-- After half of a level's capacity each new record moves its share of the level, so that all are moved before it is
-- full. If there are more already, stored before the moves began, it is twice that share.
local function moves_due(level)
  local each = level.buckets * level.full / level.size / 2 / level.sets
  local due = math.floor((stored.seen + stored.newly_seen) / each) - level.sets
  return math.min(due, level.sets, stored.moved + math.ceil(2 * stored.newly_seen / each))
end

-- Store how many levels have, or have had, records; a clearing finds their keys by it.
function lib.write_levels(state, levels)
  if levels <= stored.levels then return end
  lib.replace_field(state, "seen_levels", stored.had_levels, levels)
  stored.levels, stored.had_levels = levels, tostring(levels)
end

function lib.write_seen()
  if stored.newly_seen == 0 then return end
  local state = lib.seen_key("state")
  lib.write_levels(state, stored.levels_now)
  if stored.has_no_shape then redis.call("HSET", state, "seen_shape", stored.shape_text) end
  lib.add_to_field(state, "seen", stored.newly_seen)
  if stored.newly_in_sets > 0 then lib.add_to_field(state, "seen_sets", stored.newly_in_sets) end
  if stored.write_filters then stored.write_filters() end
end

-- Move records; called when nothing can be undone any more, since moves can't be.
function lib.move_seen_on()
  local moving = shape and shape.moving
  if not moving or stored.newly_seen <= 0 then return end
  local due = moves_due(moving)
  if due > stored.moved then lib.move_seen(moving, lib.seen_key("state"), due) end
end

-- Where a new record may go: after the others, or in a full field in place of a forgotten one; and whether it is full.
local function free_position(value, level)
  if #value >= level.full then return find_record(value, level.zeros, level.size), true end
  return #value + 1, false
end

-- Where a fingerprint is, or may be added: level, key, and field, value and position, or the member of a set; and
-- whether it is there. A set that accepts new ones is not read. Several values are returned, since tables take time.
local function locate(fingerprint)
  local a, b, c, d = string.byte(fingerprint, 1, 4)
  local hash = ((d * 256 + c) * 256 + b) * 256 + a
  local capacity = 0
  local free, free_name, free_field, free_value, free_at, member
  for i = 1, #shape do
    local level = shape[i]
    local number = hash % level.buckets
    if level.is_packed and not (level.moved and hash % level.sets < level.moved) then
      local field = number % shape.group
      local name = string.format(level.key, (number - field) / shape.group)
      field = string.format("%d", field)
      local value = redis.call("HGET", name, field) or ""
      local at = find_record(value, string.sub(fingerprint, level.from, 12), level.size)
      if at then return level, name, field, value, at, true end
      local position, is_full = free_position(value, level)
      if position and not free then
        free, free_name, free_field, free_value, free_at = level, name, field, value, position
      end
      if not is_full then break end
    elseif not level.is_packed then
      member, capacity = member or integer(fingerprint, 5), capacity + level.buckets * level.size
      local name = string.format(level.key, number)
      local is_open = i == #shape or stored.in_sets < capacity
      if is_open and not free then return level, name, member, nil, nil, false end
      if redis.call("SISMEMBER", name, member) == 1 then return level, name, member, nil, nil, true end
      if is_open then break end
    end
  end
  return free, free_name, free_field, free_value, free_at, false
end

-- Marks, to be undone after an error: keys, and fields with their old values, or members with false. They have a list
-- of their own, since most calls mark many.
local marked, marked_end = {}, 0

function lib.take_marks_back() -- seldom
  for i = marked_end, 1, -3 do
    local name, field, value = marked[i - 2], marked[i - 1], marked[i]
    if not value then
      redis.pcall("SREM", name, field)
    elseif value == "" then
      redis.pcall("HDEL", name, field)
    else
      redis.pcall("HSET", name, field, value)
    end
  end
end

local function note_mark(name, field, value)
  if marked_end == 0 then lib.note_undo("lib.take_marks_back") end
  marked[marked_end + 1], marked[marked_end + 2], marked[marked_end + 3] = name, field, value
  marked_end = marked_end + 3
end

local function write(level, name, field, value, at, text)
  local before, after = string.sub(value, 1, at - 1), string.sub(value, at + level.size)
  note_mark(name, field, value)
  redis.call("HSET", name, field, before .. text .. after)
end

-- Return whether a push would be a duplicate.
function lib.is_seen(fingerprint)
  shape = shape or read_shape()
  local level, name, field, _, _, is_found = locate(fingerprint)
  return is_found or not level.is_packed and redis.call("SISMEMBER", name, field) == 1
end

-- Mark a fingerprint as seen; return whether it is new.
function lib.mark_seen(fingerprint)
  shape = shape or read_shape()
  local level, name, field, value, at, is_found = locate(fingerprint)
  if level.number > stored.levels_now then stored.levels_now = level.number end
  if not level.is_packed then
    if is_found or redis.call("SADD", name, field) == 0 then return false end
    note_mark(name, field, false)
    stored.in_sets, stored.newly_in_sets = stored.in_sets + 1, stored.newly_in_sets + 1
  else
    if is_found then return false end
    write(level, name, field, value, at, string.sub(fingerprint, level.from, 12))
  end
  stored.newly_seen = stored.newly_seen + 1
  return true
end

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
  for _, each in ipairs(fields) do redis.pcall("HDEL", each[1], each[2]) end
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
