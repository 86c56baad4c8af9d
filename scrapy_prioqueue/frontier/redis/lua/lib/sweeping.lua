-- Growing and sweeping a table with times, a bit with each call.

-- Called with the state of the table from `lib/timed.lua`.
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
    local name, field = timed.place_of_bucket(bucket)
    local pieces = {timed.piece(name, field, 1)}
    timed.read_rest(name, field, pieces)
    local text = table.concat(pieces)
    for at = 1, #text, width do
      local number = bucket % first + first * number_at(text, at)
      local into = number % (2 * half) == bucket and stay or move
      into[#into + 1] = string.sub(text, at, at + width - 1)
    end
    local new_name, new_field = timed.place_of_bucket(buckets)
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
