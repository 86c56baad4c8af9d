-- Fingerprints and times as bytes.

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
