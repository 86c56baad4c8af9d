-- Fingerprints with the times at which they are new again, in a table.

-- Growing and sweeping the table, a bit with each call; `timed` is its state.
function lib.begin_sweeping(timed) -- seldom
  -- Average load of buckets; and how often all of them are swept in the lifetime of a record.
  local FULLNESS, PASSES = 0.6, 2
  -- Sweeping per call, and more for each mark, in records; a hash counts as two.
  local WORK, WORK_PER_MARK, HASH_WORK = 1000, 16, 2

  local group, width, full, first = timed.group, timed.width, timed.full, timed.first
  local buckets, half, dropped = timed.buckets, timed.half, 0
  local state, key_form = lib.seen_key("state"), lib.seen_form("seen:0:")

  -- Split the next bucket: the new one is written before it counts, and then the old one loses its records.
  local function split()
    local bucket, stay, move = buckets - half, {}, {}
    local name, field = timed.field_of_bucket(bucket)
    local pieces = {timed.piece(name, field, 1)}
    timed.read_rest(name, field, pieces)
    local text = table.concat(pieces)
    for at = 1, #text, width do
      local number = bucket % first + first * number_at(text, at)
      local into = number % (2 * half) == bucket and stay or move
      into[#into + 1] = string.sub(text, at, at + width - 1)
    end
    local new_name, new_field = timed.field_of_bucket(buckets)
    timed.write_bucket(new_name, new_field, {}, table.concat(move))
    buckets = buckets + 1
    if buckets == 2 * half then half = buckets end
    redis.call("HSET", state, "seen_moved", string.format("%d", buckets - first))
    timed.write_bucket(name, field, pieces, table.concat(stay))
  end

  -- Drop expired records of a hash; return how many records it had.
  local function sweep_hash(number)
    local name, values, fields, bytes = string.format(key_form, number), {}, {}, 0
    local flat = redis.call("HGETALL", name)
    for i = 1, #flat, 2 do
      local at, value = tonumber(flat[i]), flat[i + 1]
      values[at], bytes = value, bytes + #value
      if timed.has_expired(value) then fields[at % group] = true end
    end
    for field in pairs(fields) do
      local pieces = {}
      while values[field + #pieces * group] do pieces[#pieces + 1] = values[field + #pieces * group] end
      local text = table.concat(pieces)
      local alive = timed.living(text)
      timed.write_bucket(name, field, pieces, alive)
      dropped = dropped + (#text - #alive) / width
    end
    return bytes / width
  end

  -- Continue the sweep, so that all is swept twice while as many are marked as there are, and twice in the revisit
  -- time. `seen_swept` has the position, in hashes, and the time up to which the sweep is on schedule.
  local function sweep(kept)
    local hashes = math.ceil(buckets / group)
    local each_ms = math.max(1, stored.revisit_s) * 1000 / (PASSES * hashes)
    local position, since_ms = string.match(redis.call("HGET", state, "seen_swept") or "0 " .. now_ms, "^(%S+) (%S+)$")
    position, since_ms = tonumber(position) % hashes, math.min(now_ms, tonumber(since_ms))
    local step = math.max(PASSES * hashes * stored.marks / kept, (now_ms - since_ms) / each_ms)
    local due, at, work = position + math.min(step, hashes), math.floor(position), WORK + WORK_PER_MARK * stored.marks
    if stored.marks == 0 and due < at + 1 then return end
    while at + 1 <= due and work > 0 do
      work = work - HASH_WORK - sweep_hash(at % hashes)
      at = at + 1
    end
    if at + 1 <= due then
      since_ms = math.max(math.min(now_ms, since_ms + (at - position) * each_ms), now_ms - hashes * each_ms)
      due = at
    else
      since_ms = now_ms
    end
    redis.call("HSET", state, "seen_swept", string.format("%.4f %.0f", due % hashes, since_ms))
  end

  -- Called when nothing can be undone any more. Refused writes are made up for by a later call.
  function lib.move_seen_on()
    local kept = stored.seen + stored.newly_seen
    if kept > 0 then pcall(sweep, kept) end
    if dropped > 0 then redis.pcall("HINCRBY", state, "seen", -dropped) end
    local wanted = math.min(buckets + stored.marks, (kept - dropped) / (FULLNESS * full / width))
    pcall(function()
      while buckets < wanted do split() end
    end)
  end
end

-- Its shape is `<mode> 2 <fields per hash> <bytes per field> t<bits>:<bytes>`: 2^bits buckets at first, and
-- `seen_moved` of the state says how many more by now. Buckets are split in two, one at a time, in the order of their
-- numbers, so that each has its share of the records (linear hashing). The lowest bits of a bucket's number are the
-- lowest ones of a fingerprint's hash, and all others come from its record, so records are sufficient for a split. A
-- bucket is a string of records, cut into pieces of the longest field: the fields `bucket % fields`, that plus
-- `fields`, and so on, of one hash. All pieces but the last one are full.

-- Replace the functions for fingerprints by those of such a table; called if the shape has times.
function lib.begin_timed() -- seldom
  local group, room, bits, size = string.match(stored.shape_text, "^%a+ 2 (%d+) (%d+) t(%d+):(%d+)$")
  group, size = tonumber(group), tonumber(size)
  local width, from, first = size + 4, 13 - size, 2 ^ bits
  local full = math.max(1, math.floor(room / width)) * width
  local buckets, half, key_form = first + stored.moved, first, lib.seen_form("seen:0:")
  while 2 * half <= buckets do half = 2 * half end
  stored.marks = 0

  -- The key and the first field of a bucket.
  local function field_of_bucket(bucket)
    local field = bucket % group
    return string.format(key_form, (bucket - field) / group), field
  end

  local function piece(name, field, number)
    return redis.call("HGET", name, string.format("%d", field + (number - 1) * group)) or ""
  end

  -- Where a record is: key, field, the pieces up to its own, and the position in that; nil if it is missing.
  local function find(fingerprint)
    local a, b, c, d = string.byte(fingerprint, 1, 4)
    local hash = ((d * 256 + c) * 256 + b) * 256 + a
    local number = hash % first + first * number_at(fingerprint, from)
    local bucket = number % (2 * half)
    if bucket >= buckets then bucket = number % half end
    local name, field = field_of_bucket(bucket)
    local record, pieces = string.sub(fingerprint, from, 12), {}
    repeat
      local value = piece(name, field, #pieces + 1)
      pieces[#pieces + 1] = value
      local at = find_record(value, record, width)
      if at then return name, field, pieces, at end
    until #value < full
    return name, field, pieces, nil
  end

  local function read_rest(name, field, pieces)
    while #pieces[#pieces] >= full do pieces[#pieces + 1] = piece(name, field, #pieces + 1) end
  end

  local function has_expired(text)
    for at = size + 1, #text, width do
      if number_at(text, at) <= now_s then return true end
    end
    return false
  end

  -- The records that have not expired.
  local function living(text)
    if not has_expired(text) then return text end
    local kept = {}
    for at = 1, #text, width do
      if number_at(text, at + size) > now_s then kept[#kept + 1] = string.sub(text, at, at + width - 1) end
    end
    return table.concat(kept)
  end

  -- Rewrite the changed parts of a bucket; `note` is called first with what undoes it.
  local function write_bucket(name, field, pieces, text, note)
    for number = 1, math.max(#pieces, math.ceil(#text / full)) do
      local before, after = pieces[number] or "", string.sub(text, (number - 1) * full + 1, number * full)
      if before ~= after then
        local at = string.format("%d", field + (number - 1) * group)
        if note then note(name, at, before) end
        if after == "" then redis.call("HDEL", name, at) else redis.call("HSET", name, at, after) end
      end
    end
  end

  -- Return whether a push would be a duplicate.
  function lib.is_seen(fingerprint)
    local _, _, pieces, at = find(fingerprint)
    return at and number_at(pieces[#pieces], at + size) > now_s
  end

  local usual_expiry

  -- The expiry of a record, by its own number of seconds or the default.
  local function expiry(own_s)
    if not own_s and usual_expiry then return usual_expiry end
    local text = four_bytes(math.min(NEVER, math.ceil(now_ms / 1000) + (own_s or stored.revisit_s)))
    usual_expiry = not own_s and text or usual_expiry
    return text
  end

  -- Mark a fingerprint as seen, and drop expired records of its bucket; return whether it is new.
  function lib.mark_seen(fingerprint)
    local name, field, pieces, at = find(fingerprint)
    local value = pieces[#pieces]
    if at and number_at(value, at + size) > now_s then return false end
    local own_s = #fingerprint > 12 and tonumber(string.sub(fingerprint, 13)) or nil
    -- It is new again at once, so there is nothing to store.
    if (own_s or stored.revisit_s) == 0 then return true end
    local record = string.sub(fingerprint, from, 12) .. expiry(own_s)
    stored.levels_now, stored.marks = 1, stored.marks + 1
    if pieces[2] or at or has_expired(value) then
      read_rest(name, field, pieces)
      local text = table.concat(pieces)
      local alive = living(text)
      write_bucket(name, field, pieces, alive .. record, note_mark)
      stored.newly_seen = stored.newly_seen + 1 - (#text - #alive) / width
    else
      field = string.format("%d", field)
      note_mark(name, field, value)
      redis.call("HSET", name, field, value .. record)
      stored.newly_seen = stored.newly_seen + 1
    end
    return true
  end

  -- Remove a fingerprint, and expired records of its bucket; return whether it was there and not expired.
  function stored.take_out(fingerprint)
    local name, field, pieces, at = find(fingerprint)
    if not at then return false end
    local is_alive = number_at(pieces[#pieces], at + size) > now_s
    at = at + (#pieces - 1) * full
    read_rest(name, field, pieces)
    local text = table.concat(pieces)
    local alive = living(string.sub(text, 1, at - 1) .. string.sub(text, at + width))
    write_bucket(name, field, pieces, alive, note_mark)
    stored.newly_seen = stored.newly_seen - (#text - #alive) / width
    return is_alive
  end

  lib.begin_sweeping({
    group = group, width = width, full = full, first = first, half = half, buckets = buckets,
    field_of_bucket = field_of_bucket, piece = piece, read_rest = read_rest, has_expired = has_expired,
    living = living, write_bucket = write_bucket})
end
