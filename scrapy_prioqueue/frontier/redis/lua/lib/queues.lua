-- The parts of lanes and queues that a call reads.

-- Read some requests of a slot in its lane, after those that this script has taken already.
function lib.read_ahead(entry)
  local lane, queue, first = entry.lane, key("queue", entry.record.name), #entry.taken
  if lane.tier then
    entry.heads = redis.call(
      "ZRANGEBYSCORE", queue, lane.low, lane.high, "WITHSCORES", "LIMIT", first, asked.ahead)
  else
    entry.heads = redis.call("ZRANGE", queue, first, first + asked.ahead - 1, "WITHSCORES")
  end
  -- Other lanes read as many as suits them.
  entry.at, entry.is_cut = 1, #entry.heads == 2 * asked.ahead
end

-- The next request of a slot in its lane, nil if there is none; its rank, as text, follows it in `heads`. `take_next`
-- advances to the one after it.
function lib.next_of(entry)
  if entry.at > #entry.heads and entry.is_cut then lib.read_ahead(entry) end
  return entry.heads[entry.at]
end

function lib.take_next(entry)
  local count = #entry.taken + 1
  entry.taken[count], entry.ranks[count] = entry.heads[entry.at], entry.heads[entry.at + 1]
  entry.at = entry.at + 2
end

function lib.goes_before(one, other) -- policies
  if one.rank ~= other.rank then return one.rank < other.rank end
  return one.turn < other.turn
end

-- The turn of a member of a lane. A member that is too short is foreign; it is removed when it is served.
function lib.turn_of(member) -- policies
  return #member >= 8 and struct.unpack(">I8", member) or 0
end

function lib.add_entries(lane, found, is_soon)
  local list = lane.list
  if policies.has_limits then lib.read_clocks_of(found) end
  for i = 1, #found, 2 do
    local member = found[i]
    local slot = string.sub(member, 9)
    local record = lib.record_of(slot)
    if record.room > 0 and not lane.known[slot] then
      -- Tables created with all their fields needn't grow.
      local entry = {
        record = record, lane = lane, member = member, rank = lib.rank_of(found[i + 1]), is_soon = is_soon, taken = {},
        ranks = {},
        heads = false, at = 1, is_cut = false, turn = asked.is_exact and lib.turn_of(member), is_end = false}
      lib.read_ahead(entry)
      list[#list + 1] = entry
      if asked.is_exact then lane.known[slot] = true end
    end
  end
end

-- Read the state of the slots of these members of a lane.
function lib.read_clocks_of(found) -- policies
  local slots = {}
  for i = 1, #found, 2 do slots[#slots + 1] = string.sub(found[i], 9) end
  lib.with_limits().read_clocks(slots)
end

-- Add a slot that opens soon, which may not be in its lane.
function lib.add_soon(lane, slot) -- policies
  local head, turn_text = lib.head_of(slot, lane), redis.call("HGET", key("turns"), lane.prefix .. slot)
  if head[1] and turn_text then lib.add_entries(lane, {turn_text .. slot, head[2]}, true) end
end

-- Slots that were read may turn out useless, because of budgets or tighter limits. So note where the lane continues
-- after them, for `read_on`.
function lib.note_end(lane, found, most) -- policies
  lane.read = lane.read + #found / 2
  if #found < 2 * most then return end
  local last_turn = lib.turn_of(found[#found - 1])
  lane.list[#lane.list + 1] = {is_end = true, rank = lib.rank_of(found[#found]), turn = last_turn + 0.5}
end

local MOST_AHEAD, MOST_READ_ON = 64, 100

-- Fill the list of a lane, including slots that open soon: by the rank of their head, then by turn.
function lib.fill(lane, soon)
  lane.list, lane.known, lane.read = {}, {}, 0
  -- A slot in its lane opens only soon if its limits have become tighter.
  local most = (asked.limit > 0 and asked.limit or asked.later) + asked.full
  local first = redis.call("ZRANGE", lane.ready, 0, most - 1, "WITHSCORES")
  -- With fewer slots than requests wanted, several requests of each are likely to be taken; otherwise one is read.
  asked.ahead = 1 + math.min(MOST_AHEAD, math.ceil((asked.limit + asked.later) / math.max(1, #first / 2)))
  lib.add_entries(lane, first)
  if asked.is_exact then lib.note_end(lane, first, most) end
  if not soon[1] then return end
  for _, slot in ipairs(soon) do lib.add_soon(lane, slot) end
  table.sort(lane.list, lib.goes_before)
end

-- Read more of a lane; return whether it can be served. If not, the rest is left to another call, which refuses a key
-- of another type before it changes anything.
function lib.read_on(lane) -- seldom
  if asked.limit <= 0 then return true end
  local most = asked.limit + asked.full
  local found = redis.call("ZRANGE", lane.ready, lane.read, lane.read + most - 1, "WITHSCORES")
  asked.read_on = asked.read_on + #found / 2
  asked.must_return = asked.read_on > MOST_READ_ON
  for i = 1, #found, 2 do
    local reply = redis.pcall("ZREM", key("queue", string.sub(found[i], 9)), NOBODY)
    asked.must_return = asked.must_return or type(reply) == "table"
  end
  if asked.must_return then return false end
  lib.add_entries(lane, found)
  lib.note_end(lane, found, most)
  table.sort(lane.list, lib.goes_before)
  return true
end

-- Add a slot that was served and opens soon to other lanes, in which it comes after what was read.
function lib.bring_forward(record) -- policies
  if record.is_forward or not lib.start_of(record) then return end
  record.is_forward = true
  for _, lane in ipairs(lib.all_lanes()) do
    if not lane.known[record.name] then
      lib.add_soon(lane, record.name)
      table.sort(lane.list, lib.goes_before)
    end
  end
end

-- The first slot of a lane that can be served, and when its request would start; `lane.at` is its position.
function lib.first_of(lane)
  local list = lane.list
  if policies.has_limits then return lib.first_limited(lane) end
  lane.at = 1
  while list[1] do
    local first = list[1]
    if not first.is_end and first.record.room > 0 and asked.limit > 0 then return first, now_ms end
    table.remove(list, 1)
    if first.is_end and not lib.read_on(lane) then return nil end
  end
  return nil
end

-- The first slot of a lane that is ready, and its position; the first before it that isn't ready; and the first of
-- these within the horizon. Removes from the list what can't be served.
local function read_front(lane)
  local list, at, reserved, soon = lane.list, 1, nil, nil
  while list[at] do
    local entry = list[at]
    local start_ms = not entry.is_end and lib.start_of(entry.record)
    if start_ms and start_ms <= now_ms then return at, reserved, soon end
    if start_ms then
      reserved = reserved or at
      if not soon and start_ms <= lib.horizon_ms() then soon = at end
      at = at + 1
    elseif entry.is_end then
      table.remove(list, at)
      if not lib.read_on(lane) then return nil end
      at, reserved, soon = 1, nil, nil
    else
      -- Its limit may have become tighter since it was moved there.
      if not lib.may_be_served(entry.record.name) then lib.touch_all(entry.record.name) end
      table.remove(list, at)
    end
  end
  return nil, reserved, soon
end

-- The same if slots have limits. A slot that isn't ready takes a place from a ready one only if it has a better tier.
function lib.first_limited(lane) -- policies
  local ready, reserved, soon = read_front(lane)
  local list = lane.list
  lane.is_ready, lane.is_reserving = ready ~= nil, false
  if ready and reserved and lib.tier_of(list[reserved].rank) < lib.tier_of(list[ready].rank) then
    lane.at = reserved
  elseif ready and not (soon and asked.places > asked.limit) then
    lane.at = ready
  elseif soon then
    lane.at = soon
  else
    lane.at, lane.is_reserving = reserved, true
  end
  local entry = list[lane.at]
  -- Without lanes by tier there is no other request from which to reserve a place.
  if not entry or (lane.is_reserving and not lane.tier) then return nil end
  return entry, math.max(now_ms, lib.with_limits().opens_ms(entry.record.name))
end
