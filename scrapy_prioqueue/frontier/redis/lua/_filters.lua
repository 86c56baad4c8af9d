-- Layers of a Bloom filter that the server keeps by commands of its own (`BF.*`); put behind `_bits.lua` at load.
-- One of them is `f<filters>:<room>:<capacity>:<error rate>` in the shape: so many filters, each made for so many
-- fingerprints, and how many of them make the layer full. They have room for more, as not all get equally many.

local NO_FILTER = "not found"

-- A layer, as `_bits.lua` says. No filter of it gets full, but of the last one of all, which has to grow.
function lib.layer_of_filters(numbers, keys, is_last) -- seldom
  local filters, room, capacity, error_rate = string.match(numbers, "^(%d+):(%d+):(%d+):(%S+)$")
  filters = tonumber(filters)
  local layer = {capacity = tonumber(capacity)}

  local function insert(name, member)
    local found = redis.pcall("BF.INSERT", name, "NOCREATE", "ITEMS", member)
    return found[1], found.err or type(found[1]) == "table" and found[1].err
  end

  local function make(name)
    local command = {"BF.RESERVE", name, error_rate, room}
    if not is_last then command[5] = "NONSCALING" end
    local made = redis.pcall(unpack(command))
    stored.failure = made.err
    return not made.err
  end

  function layer.has(fingerprint)
    local part = part_of(fingerprint, filters)
    local found = redis.pcall("BF.EXISTS", keys .. part, string.sub(fingerprint, 1, 12))
    return not refused(found) and found == 1
  end

  function layer.add(fingerprint)
    local part = part_of(fingerprint, filters)
    local name, member = keys .. part, string.sub(fingerprint, 1, 12)
    local added, failure = insert(name, member)
    if failure and string.find(failure, NO_FILTER, 1, true) then
      if not make(name) then return nil end
      added, failure = insert(name, member)
    end
    if failure then
      stored.failure = failure
      return nil
    end
    return added == 1
  end

  return layer
end
