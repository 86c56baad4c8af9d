-- Positions of slots in lanes, updated after changes of their queues.

-- Positions that this script has changed, in that order: slots and lanes alternating. If requests were only added,
-- `best_added` has their best rank, so the queue needn't be read. `write_slots` updates lanes and turns.
-- Ranks are kept as text, since Redis takes as long as three commands to print a number.
local touched, is_touched, best_added = {}, {}, {}

-- A slot that was only checked so far, and gets a request now, gets its turn after those that got requests before.
function lib.touch_anew(position, slot, lane) -- policies
  if not lib.read_policies().has_limits then return end
  touched[is_touched[position]], is_touched[position] = false, 0
  touched[#touched + 1], touched[#touched + 2] = slot, lane
end

function lib.touch_position(slot, lane, rank)
  local position = lane.prefix .. slot
  local at = is_touched[position]
  if not at then
    local length = #touched
    is_touched[position] = rank and 0 or length + 1
    touched[length + 1], touched[length + 2] = slot, lane
    best_added[position] = rank
  elseif not (rank and best_added[position]) then
    best_added[position] = nil
    if rank and at > 0 then lib.touch_anew(position, slot, lane) end
  elseif rank ~= best_added[position] and tonumber(rank) < tonumber(best_added[position]) then
    best_added[position] = rank
  end
end

function lib.touch(slot, rank)
  lib.touch_position(slot, lib.lane_of(rank))
end

function lib.touch_all(slot) -- seldom
  for _, lane in ipairs(lib.all_lanes()) do lib.touch_position(slot, lane) end
end

-- Requests that this script adds to queues, by slot: ranks and members alternating.
local queued = {}

function lib.queue_up(slot, rank, member)
  local list = queued[slot]
  if not list then
    list = {}
    queued[slot] = list
  end
  local length = #list
  list[length + 1], list[length + 2] = rank, member
  lib.touch_position(slot, lib.lane_of(rank), rank)
end

function lib.take_from_queues(added) -- seldom
  for slot, list in pairs(added) do
    for i = 2, #list, 2 do redis.pcall("ZREM", key("queue", slot), list[i]) end
  end
end

function lib.write_queued()
  if not next(queued) then return end
  lib.note_undo("lib.take_from_queues", queued)
  for slot, list in pairs(queued) do lib.call_with_all("ZADD", key("queue", slot), list) end
  queued = {}
end

-- Writes for each lane: ranks and members alternating, or members.
local lane_writes, turned, turnless = {}, {}, {}

function lib.writes_of(lane)
  local writes = lane_writes[lane.ready]
  if not writes then
    writes = {placed = {}, lowered = {}, gone = {}}
    lane_writes[lane.ready] = writes
  end
  return writes
end

function lib.note_turn(lane, slot, turn_now)
  turned[#turned + 1], turned[#turned + 2] = lane.prefix .. slot, turn_now
end

function lib.write_lanes()
  lib.call_with_all("HSET", key("turns"), turned)
  lib.call_with_all("HDEL", key("turns"), turnless)
  for ready, writes in pairs(lane_writes) do
    lib.call_with_all("ZREM", ready, writes.gone)
    lib.call_with_all("ZADD", ready, writes.placed)
    lib.call_with_all("ZADD", ready, writes.lowered, "LT")
  end
  lane_writes, turned, turnless = {}, {}, {}
end

-- Redis searches a hash of up to 512 fields from end to end for each field, unless it has had a field of more than 64
-- bytes: then it is a hash table for good.
function lib.make_table(name)
  local LONG = string.rep(" ", 65)
  redis.pcall("HSET", name, LONG, "")
  redis.pcall("HDEL", name, LONG)
end

-- `turns` is made a table again after this many turns.
local TURNS_APART = 64

function lib.look_at_turns(first, last)
  if math.floor(first / TURNS_APART) < math.floor(last / TURNS_APART) then lib.make_table(key("turns")) end
end

local function add_position(list, rank, member)
  local length = #list
  list[length + 1], list[length + 2] = rank, member
end

-- Give turns to new positions, listed as slots, lanes and ranks alternating; return the turns before and after theirs.
local function note_new_positions(fresh)
  if not fresh[1] then return 0, 0 end
  local last = redis.call("HINCRBY", KEYS[1], "turn", #fresh / 3)
  local before = last - #fresh / 3
  local turn_now = before
  for i = 1, #fresh, 3 do
    turn_now = turn_now + 1
    local slot, lane, turn_text = fresh[i], fresh[i + 1], lib.packed(turn_now)
    lib.note_turn(lane, slot, turn_text)
    add_position(lib.writes_of(lane).placed, fresh[i + 2], turn_text .. slot)
  end
  return before, last
end

-- After an error: recompute the positions of all slots that may have changed from their queues. Every other entry of
-- each list is a slot, or false.
function lib.restore_positions(lists) -- seldom
  -- Positions that were being written may exist without their turns.
  for ready, writes in pairs(lane_writes) do
    for _, member in ipairs(writes.gone) do redis.pcall("ZREM", ready, member) end
    for i = 2, #writes.placed, 2 do redis.pcall("ZREM", ready, writes.placed[i]) end
  end
  queued, lane_writes, turned, turnless = {}, {}, {}, {}
  touched, is_touched, best_added = {}, {}, {}
  policies = nil
  if lib.read_policies().has_limits then lib.with_limits().forget() end
  for _, slots in ipairs(lists) do
    for i = 1, #slots, 2 do
      if slots[i] then lib.touch_all(slots[i]) end
    end
  end
  lib.write_slots()
end

-- Write the positions from index `first` to `last` of `touched`.
function lib.write_open_positions(first, last)
  local positions, fresh = {}, {}
  for i = first, last, 2 do positions[#positions + 1] = touched[i + 1].prefix .. touched[i] end
  local turns = redis.call("HMGET", key("turns"), unpack(positions))
  for n, name in ipairs(positions) do
    local slot, lane, turn_text = touched[first + 2 * n - 2], touched[first + 2 * n - 1], turns[n]
    local lowered = turn_text and best_added[name]
    local rank = lowered or lib.head_of(slot, lane)[2]
    if not rank and turn_text then
      local gone = lib.writes_of(lane).gone
      gone[#gone + 1], turnless[#turnless + 1] = turn_text .. slot, name
    elseif rank and not turn_text then
      local length = #fresh
      fresh[length + 1], fresh[length + 2], fresh[length + 3] = slot, lane, rank
    elseif rank then
      local writes = lib.writes_of(lane)
      add_position(lowered and writes.lowered or writes.placed, rank, turn_text .. slot)
    end
  end
  local before, last = note_new_positions(fresh)
  lib.write_lanes()
  lib.look_at_turns(before, last)
end
