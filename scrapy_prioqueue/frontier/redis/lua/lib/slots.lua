-- Writing the positions of slots in lanes, including those that may have to wait.

local MOST_SORTED, PIECE = 100, 2000

-- Returns whether the slot has requests in the lane.
function lib.write_position(slot, lane, is_open) -- seldom
  local head, turn = lib.head_of(slot, lane), redis.call("HGET", key("turns"), lane.prefix .. slot)
  if not head[1] then
    if turn then
      redis.call("ZREM", lane.ready, turn .. slot)
      redis.call("HDEL", key("turns"), lane.prefix .. slot)
    end
    return false
  end
  if not turn then
    local number = redis.call("HINCRBY", KEYS[1], "turn", 1)
    turn = lib.packed(number)
    redis.call("HSET", key("turns"), lane.prefix .. slot, turn)
    lib.look_at_turns(number - 1, number)
  end
  if is_open then
    redis.call("ZADD", lane.ready, head[2], turn .. slot)
  else
    redis.call("ZREM", lane.ready, turn .. slot)
  end
  return true
end

-- When each changed slot opens, whether it was waiting, and whether any of them waits or was waiting.
local function look_at_touched()
  local slots, opens, was_waiting, has_waiting = {}, {}, {}, false
  for i = 1, #touched, 2 do
    local slot = touched[i]
    if slot and not opens[slot] then slots[#slots + 1], opens[slot] = slot, 0 end
  end
  for first = 1, #slots, PIECE do
    local piece = {unpack(slots, first, math.min(first + PIECE - 1, #slots))}
    lib.with_limits().read_clocks(piece)
    for i, score in ipairs(redis.call("ZMSCORE", key("waiting"), unpack(piece))) do
      local slot = piece[i]
      opens[slot], was_waiting[slot] = lib.with_limits().opens_ms(slot), score and true or false
      has_waiting = has_waiting or was_waiting[slot] or opens[slot] > now_ms
    end
  end
  return slots, opens, was_waiting, has_waiting
end

-- Remove the gaps in `touched`: a position that is changed again moves to the end of the list.
function lib.drop_gaps() -- policies
  local found = {}
  for i = 1, #touched, 2 do
    if touched[i] then found[#found + 1], found[#found + 2] = touched[i], touched[i + 1] end
  end
  touched = found
end

-- `write_slots` for slots that may have to wait: a slot that has opened gets its positions in all lanes again, one that
-- has closed is in none.
function lib.write_limited_slots() -- policies
  local slots, opens, was_waiting, has_waiting = look_at_touched()
  if not has_waiting then
    lib.drop_gaps()
    lib.write_all_open()
    return false
  end
  local has_requests, has_opened = {}, false
  for _, slot in ipairs(slots) do
    if was_waiting[slot] ~= (opens[slot] > now_ms) then lib.touch_all(slot) end
  end
  for i = 1, #touched, 2 do
    local slot = touched[i]
    local is_found = slot and lib.write_position(slot, touched[i + 1], opens[slot] <= now_ms)
    if is_found then has_requests[slot] = true end
  end
  for slot, at in pairs(opens) do
    if at > now_ms and (has_requests[slot] or redis.call("EXISTS", key("queue", slot)) == 1) then
      redis.call("ZADD", key("waiting"), at, slot)
    elseif was_waiting[slot] then
      redis.call("ZREM", key("waiting"), slot)
      has_opened = has_opened or has_requests[slot]
    end
  end
  return has_opened
end

function lib.write_all_open()
  for first = 1, #touched, PIECE do lib.write_open_positions(first, math.min(first + PIECE, #touched + 1) - 1) end
end

-- Returns whether a waiting slot may be served now.
function lib.write_slots()
  local has_opened = false
  if lib.read_policies().has_limits then lib.with_limits().touch_ended() end
  if touched[1] ~= nil then lib.note_undo_end("lib.restore_positions", touched) end
  lib.write_queued()
  if lib.read_policies().has_limits then
    has_opened = lib.write_limited_slots()
    lib.with_limits().write()
  else
    lib.write_all_open()
  end
  touched, is_touched, best_added = {}, {}, {}
  return has_opened
end

function lib.name_of_unsorted(number) -- seldom
  return key("unsorted", number > 1 and number or nil)
end

-- The newest of the sorted sets of slots that are not in their new lanes yet; nil if all are.
function lib.unsorted_key() -- seldom
  local number = tonumber(redis.call("HGET", KEYS[1], "unsorted") or 0)
  while number > 0 do
    local name = lib.name_of_unsorted(number)
    if redis.call("EXISTS", name) == 1 then return name end
    number = number - 1
    lib.write_field("state", "unsorted", number > 0 and number)
  end
  return nil
end

-- Give a slot its old turn, the lowest one if it had several.
function lib.keep_turn(slot, turn_text) -- seldom
  local turn = struct.unpack(">I8", turn_text)
  for _, lane in ipairs(lib.all_lanes()) do
    local name = lane.prefix .. slot
    local turn_now = redis.call("HGET", key("turns"), name)
    if not turn_now or struct.unpack(">I8", turn_now) > turn then
      if turn_now then redis.call("ZREM", lane.ready, turn_now .. slot) end
      redis.call("HSET", key("turns"), name, turn_text)
    end
  end
end

function lib.put_aside_again(name, members) -- seldom
  for _, member in ipairs(members) do redis.pcall("ZADD", name, 0, member) end
end

-- After a change of lanes move slots to their new ones, a limited number of positions per call.
function lib.sort_slots() -- seldom
  local left, name = math.floor(MOST_SORTED / #lib.all_lanes()), lib.unsorted_key()
  while name and left > 0 do
    local members = redis.call("ZRANGE", name, 0, left - 1)
    for _, member in ipairs(members) do lib.try_zset("queue", string.sub(member, 9)) end
    for _, member in ipairs(members) do
      lib.keep_turn(string.sub(member, 9), string.sub(member, 1, 8))
      lib.touch_all(string.sub(member, 9))
    end
    lib.note_undo("lib.put_aside_again", name, members)
    redis.call("ZREM", name, unpack(members))
    left, name = left - #members, lib.unsorted_key()
  end
  lib.write_slots()
end
