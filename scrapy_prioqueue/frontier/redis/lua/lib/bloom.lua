-- A Bloom filter.
-- Its shape is `bloom 0 <capacity> <error rate in 10^-9> <layers>`. `lib/bits.lua` and `lib/filters.lua` have layers.
-- The next layer begins when the one before is full; the last layer takes all the rest.

-- Replace the functions for fingerprints by those of a Bloom filter; called if the shape is one.
function lib.begin_bloom() -- seldom
  local layers, count = {}, lib.count_seen()
  local room, begun_at, is_last = 0, 0, false
  local next_at = string.match(stored.shape_text, "^bloom %d %d+ %d+ ()")

  local function read_layer()
    local kind, numbers
    kind, numbers, next_at = string.match(stored.shape_text, "(%a)(%S+) ?()", next_at)
    is_last = next_at > #stored.shape_text
    local layer_of = kind == "f" and lib.layer_of_filters or lib.layer_of_bits
    local layer = layer_of(numbers, lib.seen_key("seen:" .. #layers .. ":"), is_last)
    layers[#layers + 1] = layer
    begun_at, room = room, room + layer.capacity
  end

  -- Return whether a push would be a duplicate.
  function lib.is_seen(fingerprint)
    for i = 1, #layers do
      if layers[i].has(fingerprint) then return true end
    end
    return false
  end

  -- Mark a fingerprint as seen; return whether it is new.
  function lib.mark_seen(fingerprint)
    if count >= room and not is_last then read_layer() end
    for i = 1, #layers - 1 do
      if layers[i].has(fingerprint) then return false end
    end
    if not layers[#layers].add(fingerprint, count - begun_at) then return false end
    stored.levels_now = #layers
    count, stored.newly_seen = count + 1, stored.newly_seen + 1
    return true
  end

  function stored.write_filters()
    for i = 1, #layers do
      if layers[i].write then layers[i].make_all() end
    end
    local is_begun = false
    for i = 1, #layers do
      if layers[i].write then is_begun = layers[i].write(is_begun) end
    end
  end

  repeat read_layer() until count < room or is_last
end
