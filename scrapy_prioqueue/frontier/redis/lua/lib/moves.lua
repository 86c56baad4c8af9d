-- Moves of requests between queues and leases, and the leases of each worker.

-- A pending request is `<8 bytes id><1 byte attempts><payload>` in its slot's queue. Ties are ordered by id.
-- A leased one is a MessagePack array {attempts, rank, slot, worker, payload} under its id.
-- Leases that this script has read, by id, false for none; and the ids of those that it ends, to be written together.
local known_leases, dropped, dropped_leases = {}, {}, {}

function lib.know_leases(ids)
  local MOST = 4000
  for first = 1, #ids, MOST do
    local values = redis.call("HMGET", key("leased"), unpack(ids, first, math.min(first + MOST - 1, #ids)))
    for i, value in ipairs(values) do known_leases[ids[first + i - 1]] = value end
  end
end

function lib.read_lease(id)
  local value = known_leases[id]
  if value == nil then value = redis.call("HGET", key("leased"), id) end
  if not value then return nil end
  local fields = cmsgpack.unpack(value)
  return {attempts = fields[1], rank = fields[2], slot = fields[3], worker = fields[4], payload = fields[5]}
end

function lib.held_lease(id, attempts, worker)
  local lease = lib.read_lease(id)
  if lease and lease.worker == worker and lease.attempts == attempts then return lease end
  return nil
end

local function packed_lease(lease)
  return cmsgpack.pack({lease.attempts, lease.rank, lease.slot, lease.worker, lease.payload})
end

function lib.write_lease(id, lease, ttl_ms)
  local value = packed_lease(lease)
  local is_new = redis.call("HSET", key("leased"), id, value)
  if is_new == 1 then
    lib.note_undo("HDEL", key("leased"), id)
    lib.note_undo("ZREM", key("leases"), id)
  end
  known_leases[id] = value
  redis.call("ZADD", key("leases"), now_ms + ttl_ms, id)
  lib.count("leased", is_new)
end

function lib.drop_lease(id, lease)
  local length = #dropped + 1
  dropped[length], dropped_leases[length], known_leases[id] = id, lease, false
  lib.count("leased", -1)
  local is_known = not lib.read_policies().counting or lib.end_counted(id, lease)
  if policies.has_limits and is_known then lib.with_limits().uncharge(lease.slot) end
end

-- A request lost so often may kill workers. It is kept apart from its slot, as
-- `<8 bytes id><1 byte attempts><4 bytes length of slot><slot><payload>`, and a worker holds it with few others: the
-- more often it was lost, the fewer, and finally alone.
function lib.group_of(attempts) -- seldom
  local found = redis.call("HMGET", KEYS[1], "suspect_attempts", "suspect_groups")
  local steps = attempts - tonumber(found[1])
  for size in string.gmatch(found[2] or "", "%d+") do
    if steps == 0 then return tonumber(size) end
    steps = steps - 1
  end
  return 1
end

function lib.is_suspect(attempts)
  return attempts > 0 and attempts >= tonumber(redis.call("HGET", KEYS[1], "suspect_attempts"))
end

function lib.suspect_envelope(id, attempts, slot, payload) -- seldom
  return id .. string.char(attempts) .. struct.pack(">I4c0", #slot, slot) .. payload
end

function lib.put(id, attempts, rank, slot, payload)
  if lib.is_suspect(attempts) then
    lib.add_member(key("suspects"), rank, lib.suspect_envelope(id, attempts, slot, payload))
  else
    lib.queue_up(slot, rank, id .. string.char(attempts) .. payload)
  end
  lib.count("pending", 1)
end

-- A delayed request is stored under the time at which it is due.
function lib.delayed_envelope(id, attempts, rank, slot, payload) -- seldom
  return id .. string.char(attempts) .. struct.pack(">dI4c0", tonumber(rank), #slot, slot) .. payload
end

function lib.put_delayed(id, attempts, rank, slot, payload, due_ms) -- seldom
  lib.add_member(key("delayed"), due_ms, lib.delayed_envelope(id, attempts, rank, slot, payload))
  lib.count("delayed", 1)
end

-- Remove a member of a sorted set; return its score, nil if it is missing.
local function take_out(name, member)
  local score = redis.call("ZSCORE", name, member)
  if score then lib.take_member(name, score, member) end
  return score
end

-- Remove a pending request that was leased at most so often. Return its number of leases, and its rank, which may have
-- changed since the caller read it; nil if it is missing.
function lib.take_pending(id, most_attempts, rank, slot, payload) -- seldom
  for attempts = most_attempts, 0, -1 do
    local rank_now = take_out(key("queue", slot), id .. string.char(attempts) .. payload)
    if rank_now then
      lib.touch(slot, rank_now)
    else
      rank_now = take_out(key("suspects"), lib.suspect_envelope(id, attempts, slot, payload))
    end
    if rank_now then
      lib.count("pending", -1)
      return attempts, rank_now
    end
    if take_out(key("delayed"), lib.delayed_envelope(id, attempts, rank, slot, payload)) then
      lib.count("delayed", -1)
      return attempts, rank
    end
  end
  return nil
end

function lib.give_back(id, lease, attempts)
  lib.drop_lease(id, lease)
  lib.hold(lease.payload, -1)
  lib.put(id, attempts, lease.rank, lease.slot, lease.payload)
end

-- Read leases, and try the queues to which they may return, before the first one does.
function lib.try_queues(ids)
  lib.know_leases(ids)
  for _, id in ipairs(ids) do
    local lease = lib.read_lease(id)
    if lease then lib.try_zset("queue", lease.slot) end
  end
end

-- If the end of leases is undone, they get this time to live, since their expiry isn't known any more.
local RESTORED_MS = 10000

function lib.restore_leases(ids, leases) -- seldom
  for i, id in ipairs(ids) do
    redis.pcall("HSET", key("leased"), id, packed_lease(leases[i]))
    redis.pcall("ZADD", key("leases"), "NX", now_ms + RESTORED_MS, id)
  end
end

-- Write what this script has changed; return whether a waiting slot may be served now.
function lib.write_changes()
  if dropped[1] then
    lib.note_undo("lib.restore_leases", dropped, dropped_leases)
    lib.call_with_all("ZREM", key("leases"), dropped)
    lib.call_with_all("HDEL", key("leased"), dropped)
    dropped, dropped_leases = {}, {}
  end
  local has_opened = lib.write_slots()
  lib.write_counters()
  if budgets then budgets.write() end
  return has_opened
end

-- The entry of a worker is a text of the ids of all its leases, and of some that have ended. These are removed when the
-- text has grown by this many bytes, so that the end of a lease costs nothing.
local GRANTED_BYTES = 4096

local function ids_in(text)
  local ids = {}
  for at = 1, #text, 8 do ids[#ids + 1] = string.sub(text, at, at + 7) end
  return ids
end

function lib.still_leased(text) -- seldom
  local MOST, ids, kept = 4000, ids_in(text), {}
  for first = 1, #ids, MOST do
    local expiries = redis.call("ZMSCORE", key("leases"), unpack(ids, first, math.min(first + MOST - 1, #ids)))
    for i, expiry in ipairs(expiries) do
      if expiry then kept[#kept + 1] = ids[first + i - 1] end
    end
  end
  return table.concat(kept)
end

-- Note new leases of a worker, whose entry was `before`.
function lib.note_granted(worker, before, ids)
  local known = before or ""
  if math.floor(#known / GRANTED_BYTES) < math.floor((#known + #ids) / GRANTED_BYTES) then
    known = lib.still_leased(known)
  end
  lib.replace_field(key("granted"), worker, before, known .. ids)
end

-- Remove a worker. Leases that it has left are found when it comes back.
function lib.forget_granted(worker) -- seldom
  local ids, kept = ids_in(redis.call("HGET", key("granted"), worker) or ""), {}
  lib.know_leases(ids)
  for _, id in ipairs(ids) do
    local lease = lib.read_lease(id)
    if lease and lease.worker == worker then kept[#kept + 1] = id end
  end
  lib.write_field("granted", worker, kept[1] and table.concat(kept))
end
