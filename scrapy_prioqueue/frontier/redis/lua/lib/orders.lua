-- Operators' commands to workers, and the rates of the fleet.

-- Workers remember operators' commands, each with its time, and send them again to a server that has lost them. The
-- name of a command is `paused`, `drained` or `stop_reason`, as in the state, or `limits` or `budgets` followed by the
-- operator's field in that hash. Each has a time of its own.
function lib.note_orders(names) -- seldom
  local at_ms = math.max(now_ms, tonumber(redis.call("HGET", KEYS[1], "ordered_ms") or 0))
  for _, name in ipairs(names) do
    at_ms = at_ms + 1
    redis.call("ZADD", key("ordered"), at_ms, name)
  end
  if names[1] then redis.call("HSET", KEYS[1], "ordered_ms", at_ms) end
end

-- The hash and the field with the value of a command.
local function field_of_order(name)
  local noun, field = string.match(name, "^(%l+)(!.*)$")
  if noun == "limits" or noun == "budgets" then return noun, field end
  return "state", name
end

-- Empty for a command that was revoked.
function lib.order_value(name) -- seldom
  local noun, field = field_of_order(name)
  return redis.call("HGET", key(noun), field) or ""
end

-- Stop all workers that have joined before that time.
local function stop_workers(reason, at_ms)
  for _, worker in ipairs(redis.call("ZRANGE", key("workers"), 0, -1)) do
    local info = redis.call("HGET", key("info"), worker)
    if info and cjson.decode(info).joined_ms <= at_ms then redis.call("HSET", key("stops"), worker, reason) end
  end
  redis.call("HSET", KEYS[1], "has_stops", "1")
end

-- Execute a command that was given at that time, unless a later one is known; return whether it was executed.
function lib.take_order(name, at_ms, value) -- seldom
  if tonumber(redis.call("ZSCORE", key("ordered"), name) or 0) >= at_ms then return false end
  local noun, field = field_of_order(name)
  redis.call("ZADD", key("ordered"), at_ms, name)
  if noun == "limits" then lib.enable_limits() end
  lib.write_field(noun, field, value ~= "" and value)
  if noun == "limits" then lib.refresh_limits() end
  if name == "stop_reason" then stop_workers(value, at_ms) end
  if at_ms > tonumber(redis.call("HGET", KEYS[1], "ordered_ms") or 0) then
    redis.call("HSET", KEYS[1], "ordered_ms", at_ms)
  end
  return true
end

-- Stop a worker that comes back if it was to stop, even if others have stopped meanwhile.
function lib.stop_again(worker, joined_ms) -- seldom
  local at_ms = redis.call("ZSCORE", key("ordered"), "stop_reason")
  if not at_ms or tonumber(at_ms) < joined_ms then return end
  redis.call("HSET", key("stops"), worker, lib.order_value("stop_reason"))
end

local PACE_MS, PACES = 10000, 31

-- Count in `pace` requests accepted ("a"), done ("d") and given up or removed ("x") in each ten seconds of the last
-- five minutes.
function lib.note_pace(letter, number)
  if number == 0 then return end
  local bucket = math.floor(now_ms / PACE_MS)
  local count = redis.pcall("HINCRBY", key("pace"), letter .. bucket, number)
  if type(count) == "table" or count > number then return end
  local fields = redis.pcall("HKEYS", key("pace"))
  for _, field in ipairs(fields) do
    if tonumber(string.sub(field, 2)) <= bucket - PACES then redis.call("HDEL", key("pace"), field) end
  end
end

-- Count requests given up or removed; those that come back count as accepted once more.
function lib.note_gone(number) -- seldom
  lib.note_pace(number > 0 and "x" or "a", math.abs(number))
end

-- Key of the requests done by slot in the ten seconds that began so many times ten seconds before the current ones.
function lib.served_key(earlier)
  return key("served", math.floor(now_ms / PACE_MS) - earlier)
end

-- Count requests done by slot in each ten seconds of the last minute. The counts are only shown, so refused writes are
-- skipped.
function lib.note_served(served)
  if not next(served) then return end
  local name, slots, values = lib.served_key(0), {}, {}
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
