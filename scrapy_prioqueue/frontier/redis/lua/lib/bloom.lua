-- A Bloom filter; `lib/bits.lua` and `lib/filters.lua` have its subfilters.
-- Its shape is `bloom 0 <capacity> <error rate in 10^-9> <subfilters>`.
-- The next subfilter begins when the one before is full; the last subfilter takes all the rest.

-- Replace the functions for fingerprints by those of a Bloom filter; called if the shape is one.
function lib.begin_bloom() -- seldom
  local subfilters, count = {}, lib.count_seen()
  local room, begun_at, is_last = 0, 0, false
  local next_at = string.match(stored.shape_text, "^bloom %d %d+ %d+ ()")

  local function read_subfilter()
    local kind, numbers
    kind, numbers, next_at = string.match(stored.shape_text, "(%a)(%S+) ?()", next_at)
    is_last = next_at > #stored.shape_text
    local subfilter_of = kind == "f" and lib.subfilter_of_filters or lib.subfilter_of_bits
    local subfilter = subfilter_of(numbers, lib.seen_key("seen:" .. #subfilters .. ":"), is_last)
    subfilters[#subfilters + 1] = subfilter
    begun_at, room = room, room + subfilter.capacity
  end

  -- Return whether a push would be a duplicate.
  function lib.is_seen(fingerprint)
    for i = 1, #subfilters do
      if subfilters[i].has(fingerprint) then return true end
    end
    return false
  end

  -- Mark a fingerprint as seen; return whether it is new.
  function lib.mark_seen(fingerprint)
    if count >= room and not is_last then read_subfilter() end
    for i = 1, #subfilters - 1 do
      if subfilters[i].has(fingerprint) then return false end
    end
    if not subfilters[#subfilters].add(fingerprint, count - begun_at) then return false end
    stored.levels_now = #subfilters
    count, stored.newly_seen = count + 1, stored.newly_seen + 1
    return true
  end

  function stored.write_filters()
    for i = 1, #subfilters do
      if subfilters[i].write then subfilters[i].make_all() end
    end
    local is_begun = false
    for i = 1, #subfilters do
      if subfilters[i].write then is_begun = subfilters[i].write(is_begun) end
    end
  end

  repeat read_subfilter() until count < room or is_last
end
