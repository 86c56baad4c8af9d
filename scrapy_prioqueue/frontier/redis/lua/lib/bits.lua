-- Subfilters of a Bloom filter in plain strings.
-- In the shape a subfilter is `b<hashes>:<strings>:<bytes>:<capacity>`: number of bits per fingerprint, all of them in
-- one of the strings, number and length of these, and number of fingerprints that make it full.

-- The string or filter of a subfilter for a fingerprint, and the rest of the number that determines it.
local function part_of(fingerprint, parts)
  local a, b, c, d = string.byte(fingerprint, 1, 4)
  local hash = ((d * 256 + c) * 256 + b) * 256 + a
  local part = hash % parts
  return part, (hash - part) / parts
end

-- Clear bits that a command has set and that were clear before.
function lib.clear_bits(command, before) -- seldom
  for i = 1, #before do
    if before[i] == 0 then redis.pcall("SETBIT", command[2], command[4 * i + 1], 0) end
  end
end

-- A subfilter: `has` returns whether a fingerprint is in it, `add` adds it and returns whether it was new.
function lib.subfilter_of_bits(numbers, keys) -- seldom
  local hashes, strings, bytes, capacity = string.match(numbers, "^(%d+):(%d+):(%d+):(%d+)$")
  hashes, strings, bytes = tonumber(hashes), tonumber(strings), tonumber(bytes)
  local subfilter = {capacity = tonumber(capacity)}
  -- Numbers in a command are slow, so all constant ones are texts.
  local command = {"BITFIELD", ""}
  for at = 3, 4 * hashes, 4 do
    command[at], command[at + 1], command[at + 2], command[at + 3] = "SET", "u1", "0", "1"
  end

  -- Make this the command for the bits of a fingerprint; see `Bits.positions` of `subfilters.py`.
  local function aim_at(fingerprint)
    local part, more = part_of(fingerprint, strings)
    local first, step, size = number_at(fingerprint, 5), number_at(fingerprint, 9), bytes * 8
    command[2] = keys .. part
    for at = 5, #command, 4 do
      command[at] = first % size
      first, step = first + step, step + more
    end
  end

  function subfilter.has(fingerprint)
    aim_at(fingerprint)
    for at = 5, #command, 4 do
      if redis.call("GETBIT", command[2], command[at]) == 0 then return false end
    end
    return true
  end

  -- A string that grows gets more memory than it needs, so it is created at its full length. After this many
  -- fingerprints all strings of a subfilter exist almost certainly.
  local function make_string(name, held)
    if held > 20 * strings or redis.call("STRLEN", name) == bytes then return end
    redis.call("SETRANGE", name, bytes - 1, string.char(0))
  end

  function subfilter.add(fingerprint, held)
    aim_at(fingerprint)
    make_string(command[2], held)
    local before = redis.call(unpack(command))
    for i = 1, #before do
      if before[i] == 0 then
        lib.note_undo("lib.clear_bits", {unpack(command)}, before)
        return true
      end
    end
    return false
  end

  return subfilter
end
