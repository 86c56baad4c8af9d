-- Subfilters of a Bloom filter in filters of RedisBloom (`BF.*`).
-- In the shape a subfilter is `f<filters>:<room>:<capacity>:<error rate>`: number of filters, number of fingerprints
-- for which each is created, and number that makes the subfilter full. They have spare room, since not all get equally
-- many.
-- Additions can't be undone, so fingerprints are added when all else is done.

-- A subfilter as in `lib/bits.lua`. Its filters never get full, except in the last subfilter, where they have to grow.
function lib.subfilter_of_filters(numbers, keys, is_last) -- seldom
  local filters, room, capacity, error_rate = string.match(numbers, "^(%d+):(%d+):(%d+):(%S+)$")
  filters = tonumber(filters)
  local subfilter = {capacity = tonumber(capacity)}
  -- Fingerprints to add: by filter, and individually.
  local members_of, is_waiting = {}, {}

  local function make(name)
    if redis.call("EXISTS", name) == 1 then return end
    local command = {"BF.RESERVE", name, error_rate, room}
    if not is_last then command[5] = "NONSCALING" end
    redis.call(unpack(command))
  end

  function subfilter.has(fingerprint)
    local member = string.sub(fingerprint, 1, 12)
    return is_waiting[member] or redis.call("BF.EXISTS", keys .. part_of(fingerprint, filters), member) == 1
  end

  function subfilter.add(fingerprint)
    if subfilter.has(fingerprint) then return false end
    local name, member = keys .. part_of(fingerprint, filters), string.sub(fingerprint, 1, 12)
    local members = members_of[name] or {}
    members[#members + 1], members_of[name], is_waiting[member] = member, members, true
    return true
  end

  function subfilter.make_all()
    for name in pairs(members_of) do make(name) end
  end

  -- After a first addition, which can't be undone, refused ones are skipped: such a page is fetched again if it is
  -- found again. Before that a refusal is an error. Returns whether anything was added.
  function subfilter.write(is_begun)
    for name, members in pairs(members_of) do
      local added = (is_begun and redis.pcall or redis.call)("BF.INSERT", name, "NOCREATE", "ITEMS", unpack(members))
      if not is_begun and type(added[1]) == "table" then error(added[1].err, 0) end
      is_begun = true
    end
    return is_begun
  end

  return subfilter
end
