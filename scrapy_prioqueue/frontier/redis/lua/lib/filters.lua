-- Layers of a Bloom filter that the server keeps by commands of its own (`BF.*`).
-- One of them is `f<filters>:<room>:<capacity>:<error rate>` in the shape: so many filters, each made for so many
-- fingerprints, and how many of them make the layer full. They have room for more, as not all get equally many.
-- A filter forgets nothing, so fingerprints are added when all else is done, and nothing is to be taken back any more.

-- A layer, as `lib/bits.lua` says. No filter of it gets full, but of the last one of all, which has to grow.
function lib.layer_of_filters(numbers, keys, is_last) -- seldom
  local filters, room, capacity, error_rate = string.match(numbers, "^(%d+):(%d+):(%d+):(%S+)$")
  filters = tonumber(filters)
  local layer = {capacity = tonumber(capacity)}
  -- What is to be added: by filter, and each by itself.
  local members_of, is_waiting = {}, {}

  local function make(name)
    if redis.call("EXISTS", name) == 1 then return end
    local command = {"BF.RESERVE", name, error_rate, room}
    if not is_last then command[5] = "NONSCALING" end
    redis.call(unpack(command))
  end

  function layer.has(fingerprint)
    local member = string.sub(fingerprint, 1, 12)
    return is_waiting[member] or redis.call("BF.EXISTS", keys .. part_of(fingerprint, filters), member) == 1
  end

  function layer.add(fingerprint)
    if layer.has(fingerprint) then return false end
    local name, member = keys .. part_of(fingerprint, filters), string.sub(fingerprint, 1, 12)
    local members = members_of[name] or {}
    members[#members + 1], members_of[name], is_waiting[member] = member, members, true
    return true
  end

  function layer.make_all()
    for name in pairs(members_of) do make(name) end
  end

  -- Once something was added, which can't be taken back, what is refused is left out: such a page is fetched again
  -- where it is found again. Before that it is an error. Returns whether something was added.
  function layer.write(is_begun)
    for name, members in pairs(members_of) do
      local added = (is_begun and redis.pcall or redis.call)("BF.INSERT", name, "NOCREATE", "ITEMS", unpack(members))
      if not is_begun and type(added[1]) == "table" then error(added[1].err, 0) end
      is_begun = true
    end
    return is_begun
  end

  return layer
end
