-- What an operator wants of the workers, and how fast they are; put behind the other libraries at load.

-- {paused 0 or 1, drained 0 or 1, the reason for which this worker is to stop or "", flooded 0 or 1}
function lib.orders_for(worker, paused, drained, has_stops, is_flooded)
  local reason = has_stops and redis.call("HGET", key("stops"), worker)
  return {paused and 1 or 0, drained and 1 or 0, reason or "", is_flooded and 1 or 0}
end

local PACE_MS, PACES = 10000, 31

-- Count in `pace` what was accepted ("a") and done ("d") in each ten seconds of the last five minutes.
function lib.note_pace(letter, number)
  if number == 0 then return end
  local bucket = math.floor(now_ms / PACE_MS)
  if redis.call("HINCRBY", key("pace"), letter .. bucket, number) > number then return end
  local fields = redis.pcall("HKEYS", key("pace"))
  for _, field in ipairs(fields) do
    if tonumber(string.sub(field, 2)) <= bucket - PACES then redis.call("HDEL", key("pace"), field) end
  end
end

-- Count by slot what was done in each ten seconds of the last minute. It is for people to read, so whatever the server
-- refuses here is left out.
function lib.note_served(served)
  if not next(served) then return end
  local name, slots, values = key("served", math.floor(now_ms / PACE_MS)), {}, {}
  for slot in pairs(served) do slots[#slots + 1] = slot end
  local before = redis.pcall("HMGET", name, unpack(slots))
  if before.err then return end
  for i, slot in ipairs(slots) do
    values[2 * i - 1], values[2 * i] = slot, string.format("%d", (tonumber(before[i] or 0) or 0) + served[slot])
  end
  local added = redis.pcall("HSET", name, unpack(values))
  if added == 0 or type(added) == "table" then return end
  redis.pcall("EXPIRE", name, 75)
  if added == #slots then lib.make_table(name) end
end
