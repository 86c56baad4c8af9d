-- Fingerprints and times as bytes, and how they are stored according to `seen_shape` of the state.

local function number_at(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function four_bytes(number)
  return string.char(
    math.floor(number / 16777216), math.floor(number / 65536) % 256, math.floor(number / 256) % 256, number % 256)
end

-- The position of a record among others of that width, nil if it is missing.
local function find_record(value, record, width)
  local at = string.find(value, record, 1, true)
  while at and at % width ~= 1 do at = string.find(value, record, at + 1, true) end
  return at
end

-- Return 8 bytes as a signed integer in decimal, since Lua's numbers are too short.
local function integer(text, at)
  local a, b, c, d, e, f, g, h = string.byte(text, at, at + 7)
  local high, low = ((a * 256 + b) * 256 + c) * 256 + d, ((e * 256 + f) * 256 + g) * 256 + h
  local form = "%d%06d"
  if high >= 2147483648 then form, high, low = "-%d%06d", 4294967295 - high, 4294967296 - low end
  -- 2^32 is 4294 * 10^6 + 967296.
  local rest = high * 967296 + low
  local units = rest % 1000000
  local millions = high * 4294 + (rest - units) / 1000000
  if millions == 0 then return string.format(string.sub(form, 1, -5), rest) end
  return string.format(form, millions, units)
end

-- The shape is `<mode> <times> <fields per hash> <bytes per field> <levels>`; with times (2) see `lib/timed.lua`,
-- without (0) each level is one of
--   p<bits>:<bytes>    packed: 2^bits fields of hashes have records of that many bytes of a fingerprint
--   s<bits>:<members>  2^bits sets of integers; the next level begins when they have that many members on average
-- A packed level moves into the sets after it, set by set, if its records are members of these and its fields determine
-- the set. Sets before `seen_moved` have all of their members, and the fields of these are no longer read.

local DEFAULT_SHAPE = "exact 0 64 64 p18:8 s16:384 s19:384 s22:384"
local NEVER = 2 ^ 32 - 1
local now_s = math.floor(now_ms / 1000)

-- What this script has stored so far; see `begin_storing`.
local stored = {newly_seen = 0, newly_in_sets = 0, levels_now = 0, accepted = 0, delayed = 0}

function lib.read_seen()
  local fields = {"seen_shape", "seen_sets", "revisit_s", "seen_name", "seen", "seen_moved", "seen_levels"}
  local own = redis.call("HMGET", KEYS[1], unpack(fields))
  seen_prefix = own[4] and "{prioqueue:" .. own[4] .. "}:" or prefix
  local home = own[4] and redis.call("HMGET", lib.seen_key("state"), unpack(fields)) or own
  stored.has_no_shape = not home[1]
  stored.shape_text = home[1] or own[1] or DEFAULT_SHAPE
  stored.in_sets, stored.revisit_s = tonumber(home[2] or 0), tonumber(own[3] or NEVER)
  stored.seen, stored.moved = tonumber(home[5] or 0), tonumber(home[6] or 0)
  -- If an earlier version has stored some, the number of levels isn't known.
  stored.levels = tonumber(home[7]) or (stored.seen > 0 and math.huge or 0)
  stored.had_levels = home[7]
end

function lib.has_times()
  return string.find(stored.shape_text, " t", 1, true)
end

local shape

-- Format of the key of a level, for its number; this prints numbers faster than Redis or Lua do otherwise.
function lib.seen_form(noun)
  return (string.gsub(lib.seen_key(noun), "%%", "%%%%")) .. "%d"
end

local function find_moving()
  for i = 1, #shape - 1 do
    local level, sets = shape[i], shape[i + 1]
    if level.is_packed and not sets.is_packed and level.size == 8 and level.buckets >= sets.buckets then
      level.sets, level.into, level.moved = sets.buckets, sets.key, stored.moved
      level.number_of_sets = sets.number
      if stored.moved < level.sets then shape.moving = level else table.remove(shape, i) end
      return
    end
  end
end

local function read_shape()
  local times, group, room, rest = string.match(stored.shape_text, "^%a+ (%d) (%d+) (%d+) ?(.*)$")
  if times ~= "0" then error("an earlier version has kept these fingerprints with times: reset --seen forgets them") end
  shape = {group = tonumber(group)}
  for kind, bits, size in string.gmatch(rest, "(%a)(%d+):(%d+)") do
    shape[#shape + 1] = {
      number = #shape + 1, is_packed = kind == "p", buckets = 2 ^ bits, size = tonumber(size), from = 13 - size,
      zeros = string.rep("\0", size), full = math.max(1, math.floor(room / size)) * size,
      key = lib.seen_form("seen:" .. #shape .. ":")}
  end
  -- The last level never overflows.
  if #shape > 0 then shape[#shape].full = math.huge end
  find_moving()
  return shape
end
