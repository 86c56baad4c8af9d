-- Leasing requests to a worker, and giving others up.

-- Contents of the reply, and pending writes; see `lease`.
local granted = {
  leases = {}, ids = {}, expiries = {}, records = {}, starts = {}, over = {}, refusals = {}, foreign = {}, aside = 0,
  unfit = 0, count = 0}

-- Maximum number of requests that one call gives up or sets aside, since other clients wait meanwhile.
local MOST_UNFIT = 100

-- Add to the reply when a request starts, if its slot limits that.
function lib.add_start(slot, start_ms) -- policies
  local interval = lib.with_limits().clock_of(slot).limit.interval
  if start_ms <= now_ms and interval == 0 then return end
  local late_ms = interval > 0 and math.floor(LATE_MS + interval / 2) or -1
  local starts, length = granted.starts, #granted.starts
  starts[length + 1], starts[length + 2], starts[length + 3] = granted.count, math.ceil(start_ms - now_ms), late_ms
end

function lib.grant(id, attempts, rank, slot, payload, start_ms)
  local leases, count_before = granted.leases, granted.count
  local at = count_before * 5
  leases[at + 1], leases[at + 2], leases[at + 3], leases[at + 4], leases[at + 5] = id, attempts, rank, slot, payload
  granted.ids[count_before + 1] = id
  at = count_before * 2
  granted.expiries[at + 1], granted.expiries[at + 2] = asked.expires, id
  granted.records[at + 1] = id
  granted.records[at + 2] = cmsgpack.pack({attempts, rank, slot, asked.worker, payload})
  if policies.has_limits then
    lib.add_start(slot, start_ms)
    lib.with_limits().charge(slot, start_ms)
    lib.take_place(start_ms)
  else
    asked.limit = asked.limit - 1
  end
  granted.count = count_before + 1
  if policies.has_budgets then lib.hold(payload, 1) end
end

function lib.hand_out(envelope, rank, rest, record, start_ms)
  if #envelope < 9 then return lib.give_up_foreign(envelope) end
  local id, attempts, payload = string.sub(envelope, 1, 8), string.byte(envelope, 9), string.sub(envelope, rest)
  if asked.has_refused and not lib.may_read(id, attempts, rank, record.name, payload) then return false end
  if policies.has_budgets and lib.give_up(id, attempts, rank, record.name, payload) then return false end
  lib.grant(id, attempts + 1, rank, record.name, payload, start_ms)
  record.room, record.granted = record.room - 1, record.granted + 1
  if policies.has_limits and asked.later + asked.reserve_ms > 0 then lib.bring_forward(record) end
  return true
end

-- Take the first suspect, unless a better request can be served or too many suspects are held; return the size of its
-- group, nil if it wasn't taken.
function lib.take_suspect(held) -- seldom
  local found = redis.call("ZRANGE", key("suspects"), 0, 0, "WITHSCORES")
  local envelope, rank = found[1], tonumber(found[2])
  if not envelope then return nil end
  local slot, rest = lib.read_suspect(envelope)
  if not slot then
    lib.take_member(key("suspects"), rank, envelope)
    return lib.give_up_foreign(envelope)
  end
  local group = lib.group_of(string.byte(envelope, 9))
  if held >= group then return nil end
  lib.try_zset("queue", slot)
  local record, rival = lib.record_of(slot), not weighted.weights and lib.next_entry()
  if lib.start_of(record) ~= now_ms or (rival and rival.rank < rank) then return nil end
  lib.take_member(key("suspects"), rank, envelope)
  local is_granted = lib.hand_out(envelope, rank, rest, record, now_ms)
  if policies.has_limits then lib.touch_all(slot) end
  return is_granted and group
end

-- Take suspects while they may be held together: up to `room`, within the group of those held.
function lib.take_suspects(room, held)
  if room == 0 or asked.limit <= 0 or redis.call("ZCARD", key("suspects")) == 0 then return end
  while room > 0 and asked.limit > 0 do
    local group = lib.take_suspect(held)
    if not group then return end
    held = held + 1
    room = math.min(room - 1, group - held)
  end
end

-- Insert a slot that was served after all others whose heads rank equal.
function lib.insert(entry)
  -- Search from the end, where most belong.
  local list, rank = entry.lane.list, entry.rank
  local at = #list
  while at > 0 and list[at].rank > rank do
    list[at + 1] = list[at]
    at = at - 1
  end
  list[at + 1] = entry
end

local served, turn = {}, nil

-- The queue of a slot in a lane may be empty, if somebody has deleted it.
function lib.serve(entry, start_ms)
  local lane, slot = entry.lane, entry.record.name
  table.remove(lane.list, lane.at)
  local envelope = lib.next_of(entry)
  if granted.unfit >= MOST_UNFIT and envelope and lib.may_be_unfit(envelope) then
    -- The slot is skipped until the next call, so that others are served.
    entry.record.room = 0
    return
  end
  turn = turn + 1
  entry.turn, served[lane.prefix .. slot] = turn, entry
  if envelope then
    local rank = lib.rank_of(entry.heads[entry.at + 1])
    lib.take_next(entry)
    if lib.hand_out(envelope, rank, 10, entry.record, start_ms) then
      if weighted.weights then lib.pay(lane) end
      if lib.is_discovery(lane) then flood.allowed = flood.allowed - 1 end
    end
  end
  entry.rank = lib.next_of(entry) and lib.rank_of(entry.heads[entry.at + 1])
  if entry.rank then lib.insert(entry) end
end

function lib.end_granted() -- seldom
  for i = 2, #granted.expiries, 2 do
    redis.pcall("HDEL", key("leased"), granted.expiries[i])
    redis.pcall("ZREM", key("leases"), granted.expiries[i])
  end
end

-- Called before anything is written, so that a key of another type is refused here.
function lib.read_granted()
  if granted.count > 0 then granted.before = redis.call("HGET", key("granted"), asked.worker) end
end

function lib.write_granted()
  if granted.count == 0 then return end
  lib.note_granted(asked.worker, granted.before, table.concat(granted.ids))
  lib.note_undo("lib.end_granted")
  lib.call_with_all("ZADD", key("leases"), granted.expiries)
  lib.call_with_all("HSET", key("leased"), granted.records)
end

function lib.put_back(entries) -- seldom
  for _, entry in pairs(entries) do
    for i, envelope in ipairs(entry.taken) do
      redis.pcall("ZADD", key("queue", entry.record.name), entry.ranks[i], envelope)
    end
  end
end

function lib.write_served()
  if next(served) then
    local slots = {}
    for _, entry in pairs(served) do slots[#slots + 1], slots[#slots + 2] = entry.record.name, entry end
    lib.note_undo_end("lib.restore_positions", slots)
    lib.note_undo("lib.put_back", served)
  end
  for name, entry in pairs(served) do
    local turn_now, slot, writes = lib.packed(entry.turn), entry.record.name, lib.writes_of(entry.lane)
    lib.call_with_all("ZREM", key("queue", slot), entry.taken)
    writes.gone[#writes.gone + 1] = entry.member
    if entry.rank then lib.note_turn(entry.lane, slot, turn_now) else turnless[#turnless + 1] = name end
    if policies.has_limits and (entry.is_soon or not lib.may_be_served(slot)) then
      lib.touch_position(slot, entry.lane)
    elseif entry.rank then
      local length = #writes.placed
      writes.placed[length + 1], writes.placed[length + 2] = entry.heads[entry.at + 1], turn_now .. slot
    end
  end
  lib.write_lanes()
  if next(served) then redis.call("HSET", KEYS[1], "turn", turn) end
end

-- Give up a request that doesn't fit its budgets; return whether that was so.
function lib.give_up(id, attempts, rank, slot, payload) -- policies
  local name, detail = lib.with_budgets().give_up(payload)
  if not name then return false end
  if granted.unfit == 0 then lib.try_writes(false) end
  lib.dead_letter(id, {attempts = attempts, rank = rank, slot = slot, worker = "", payload = payload}, "budget", detail)
  granted.over[#granted.over + 1], granted.unfit = name, granted.unfit + 1
  return true
end

-- Return whether the worker may be able to decode a request; if not, others get it. Records how often all refused it.
function lib.may_read(id, attempts, rank, slot, payload) -- seldom
  local names = lib.refusals_of(id)
  if not names then return true end
  local rounds = lib.rounds_of(names, asked.worker)
  if rounds == 0 then return true end
  if lib.set_aside(names, asked.since_ms, id, attempts, rank, slot, payload) then
    granted.aside, granted.unfit = granted.aside + 1, granted.unfit + 1
    return false
  end
  local length = #granted.refusals
  granted.refusals[length + 1], granted.refusals[length + 2] = id, rounds
  return true
end

-- Return whether a request is perhaps one that can't be leased.
function lib.may_be_unfit(envelope) -- seldom
  if #envelope < 9 or (asked.has_refused and lib.refusals_of(string.sub(envelope, 1, 8))) then return true end
  return policies.has_budgets and lib.with_budgets().excess(string.sub(envelope, 10)) ~= nil
end

-- Give up an entry that another program has written.
function lib.give_up_foreign(envelope) -- seldom
  lib.dead_letter_foreign(envelope)
  local foreign, length = granted.foreign, #granted.foreign
  granted.unfit = granted.unfit + 1
  foreign[length + 1], foreign[length + 2] = new_letters[#new_letters - 1], new_letters[#new_letters]
  return false
end
