-- Which fingerprints were seen, kept as `seen_shape` of the state says; put behind `_records.lua` at load.
-- The shape is `<mode> <has times 0|1> <fields per hash> <bytes per field> <levels>`, each level one of
--   p<bits>:<bytes>    packed: 2^bits fields of hashes hold records, so many bytes of a fingerprint each, and behind
--                      each, if there are times, the second at which it is new again
--   s<bits>:<members>  2^bits sets of integers; when so many are in each on average, the next level is begun
-- What finds its field full goes to the next level. Fields that have been full stay as long as they are, so what is not
-- in one that is shorter is in no later level.
-- A fingerprint comes as a hash of 12 bytes, the first four of which choose the field, lowest first, and the last ones
-- are the record; behind it, in decimal, the seconds after which it is new again, if that is its own affair.

local DEFAULT_SHAPE = "exact 0 64 64 p18:8 s16:384 s19:384 s22:384"
local NEVER = 2 ^ 32 - 1
local now_s = math.floor(now_ms / 1000)

-- What this script has stored so far; see `begin_storing`.
-- `failure` is what the server says of fingerprints that it refuses: then nothing more is stored and the batch is not
-- applied; what was stored before stays, and the books balance.
local stored = {newly_seen = 0, newly_in_sets = 0, accepted = 0, delayed = 0, failure = nil}

function lib.read_seen()
  local fields = {"seen_shape", "seen_sets", "revisit_s", "seen_name"}
  local own = redis.call("HMGET", KEYS[1], unpack(fields))
  local home = own[4] and redis.call("HMGET", lib.seen_key("state"), unpack(fields)) or own
  stored.has_no_shape = not home[1]
  stored.shape_text = home[1] or own[1] or DEFAULT_SHAPE
  stored.in_sets, stored.revisit_s = tonumber(home[2] or 0), tonumber(own[3] or NEVER)
end

function lib.write_seen()
  if stored.newly_seen == 0 then return end
  local state = lib.seen_key("state")
  redis.call("HINCRBY", state, "seen", stored.newly_seen)
  if stored.newly_in_sets > 0 then redis.call("HINCRBY", state, "seen_sets", stored.newly_in_sets) end
  if stored.has_no_shape then redis.call("HSET", state, "seen_shape", stored.shape_text) end
end

local shape
local function read_shape()
  local mode, times, group, room, rest = string.match(stored.shape_text, "^(%a+) (%d) (%d+) (%d+) ?(.*)$")
  shape = {mode = mode, has_times = times == "1", group = tonumber(group)}
  for kind, bits, size in string.gmatch(rest, "(%a)(%d+):(%d+)") do
    local width = tonumber(size) + (shape.has_times and 4 or 0)
    shape[#shape + 1] = {
      is_packed = kind == "p", buckets = 2 ^ bits, size = tonumber(size), width = width,
      from = 13 - size, zeros = string.rep("\0", size),
      full = math.max(1, math.floor(room / width)) * width, prefix = lib.seen_key("seen:" .. #shape .. ":")}
  end
  -- There is nowhere to go from the last level.
  if #shape > 0 then shape[#shape].full = math.huge end
  return shape
end

-- Where a new record may go: behind the others, unless one has expired or was forgotten.
local function free_position(value, level)
  local is_full = #value >= level.full
  if shape.has_times then
    for at = 1, #value, level.width do
      if number_at(value, at + level.size) <= now_s then return at, is_full end
    end
  elseif is_full then
    return find_record(value, level.zeros, level.width), true
  end
  return not is_full and #value + 1 or nil, is_full
end

local function refused(reply)
  if type(reply) ~= "table" then return false end
  stored.failure = reply.err
  return true
end

-- Where a fingerprint is, or may go: level, key, and field, value and position, or the member of a set; and whether it
-- is there. A set that is open to new ones is not looked into. Several values, since tables would take time.
local function place_of(fingerprint)
  local a, b, c, d = string.byte(fingerprint, 1, 4)
  local hash = ((d * 256 + c) * 256 + b) * 256 + a
  local capacity = 0
  local free, free_name, free_field, free_value, free_at, member
  for i = 1, #shape do
    local level = shape[i]
    local number = hash % level.buckets
    if level.is_packed then
      local field = number % shape.group
      local name = level.prefix .. (number - field) / shape.group
      local value = redis.pcall("HGET", name, field) or ""
      if refused(value) then return nil end
      local at = find_record(value, string.sub(fingerprint, level.from, 12), level.width)
      if at then return level, name, field, value, at, true end
      local position, is_full = free_position(value, level)
      if position and not free then
        free, free_name, free_field, free_value, free_at = level, name, field, value, position
      end
      if not is_full then break end
    else
      member, capacity = member or integer(fingerprint), capacity + level.buckets * level.size
      local name = level.prefix .. number
      local is_open = i == #shape or stored.in_sets < capacity
      if is_open and not free then return level, name, member, nil, nil, false end
      local is_member = redis.pcall("SISMEMBER", name, member)
      if refused(is_member) then return nil end
      if is_member == 1 then return level, name, member, nil, nil, true end
      if is_open then break end
    end
  end
  return free, free_name, free_field, free_value, free_at, false
end

local function expiry(fingerprint)
  if not shape.has_times then return "" end
  local revisit_s = tonumber(string.sub(fingerprint, 13)) or stored.revisit_s
  if revisit_s == 0 then return four_bytes(0) end
  return four_bytes(math.min(NEVER, math.ceil(now_ms / 1000) + revisit_s))
end

local function write(level, name, field, value, at, text)
  local before, after = string.sub(value, 1, at - 1), string.sub(value, at + level.width)
  return redis.pcall("HSET", name, field, before .. text .. after)
end

-- True if the fingerprint is new; then it is marked seen.
function lib.mark_seen(fingerprint)
  shape = shape or read_shape()
  local level, name, field, value, at, is_found = place_of(fingerprint)
  if not level then return false end
  if not level.is_packed then
    if is_found then return false end
    local added = redis.pcall("SADD", name, field)
    if refused(added) or added == 0 then return false end
    stored.in_sets, stored.newly_in_sets = stored.in_sets + 1, stored.newly_in_sets + 1
  else
    if is_found and not (shape.has_times and number_at(value, at + level.size) <= now_s) then return false end
    local text = string.sub(fingerprint, level.from, 12) .. expiry(fingerprint)
    if refused(write(level, name, field, value, at, text)) then return false end
    -- In the place of one that has expired it makes no more of them.
    if at <= #value and string.sub(value, at, at + level.size - 1) ~= level.zeros then return true end
  end
  stored.newly_seen = stored.newly_seen + 1
  return true
end
