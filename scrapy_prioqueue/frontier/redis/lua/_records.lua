-- Fingerprints and times as bytes; put behind `_times.lua` at load.

local function number_at(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function four_bytes(number)
  return string.char(
    math.floor(number / 16777216), math.floor(number / 65536) % 256, math.floor(number / 256) % 256, number % 256)
end

-- Where a record is among others of that width, nil if it isn't.
local function find_record(value, record, width)
  local at = string.find(value, record, 1, true)
  while at and at % width ~= 1 do at = string.find(value, record, at + 1, true) end
  return at
end

-- The last 8 bytes as a signed integer in decimal; Lua's numbers are too short for that.
local function integer(fingerprint)
  local high, low = number_at(fingerprint, 5), number_at(fingerprint, 9)
  local sign = ""
  if high >= 2147483648 then
    sign, high, low = "-", 4294967295 - high, 4294967296 - low
  end
  -- 2^32 is 4294 millions and 967296.
  local rest = high * 967296 + low
  local millions = high * 4294 + math.floor(rest / 1000000)
  if millions == 0 then return string.format("%s%d", sign, rest) end
  return string.format("%s%d%06d", sign, millions, rest % 1000000)
end
