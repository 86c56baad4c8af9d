-- Hand requests to a worker, best first, note whether it is idle, and tell whether the crawl is over.
-- guarantee: runs on a full server, too: its first write needs no memory.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- ARGV[5] lease_ttl_ms
-- ARGV[6] limit: most requests wanted
-- ARGV[7] slot_limit: most of one slot, where no room is given
-- ARGV[8] is_idle 0 or 1
-- ARGV[9] is_fair 0 or 1
-- ARGV[10] may_take_suspect 0 or 1
-- ARGV[11..] pairs: slot, room
-- reply: {code, has_ended, next_due_ms until a lease expires or a delayed request is due or -1, depth, leases, orders}
--   code: 0 fine; 1 other crawl; 2 unknown session; 4 session superseded
--   depth: {accepted, pending, leased, dead, done, workers, delayed}
--   orders: {paused, drained, reason to stop}, see _orders.lua
--   leases: {id, attempts, rank, slot, payload, id, …} in the order to be served
-- cost: O(limit * log n + rooms)
-- flags: allow-oom

local MAX_CRAWL_IDS, ARGUMENTS = 1000, 4000

local worker, nonce, ttl_ms = ARGV[3], ARGV[4], tonumber(ARGV[5])
local wanted, slot_limit, is_idle, is_fair = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == "1", ARGV[9] == "1"
local may_take_suspect = ARGV[10] == "1"

local state = redis.call("HMGET", KEYS[1], "epoch", "phase", "turn", "crawl_id", "paused", "drained", "has_stops")
if has_forgotten(state[1]) then return {UNKNOWN_SESSION} end
if is_other_crawl(state[1], state[2]) then return {OTHER_CRAWL} end
local position, why = session_position(worker, nonce)
if not position then return {why} end
local turn = tonumber(state[3] or 0)

if wanted > 0 then try_writes(false, ARGV[2]) end
redis.call("ZREM", key("hungry"), worker)
redis.call("ZADD", key("workers"), now_ms, worker)

local room, full = {}, 0
for i = 11, #ARGV, 2 do
  room[ARGV[i]] = tonumber(ARGV[i + 1])
  if room[ARGV[i]] <= 0 then full = full + 1 end
end

local function room_of(slot)
  return room[slot] or slot_limit
end

-- The first slots of `ready` that have room, sorted by the rank of their head, then by turn.
local function ready_slots(limit)
  local slots = {}
  local found = redis.call("ZRANGE", key("ready"), 0, limit + full - 1, "WITHSCORES")
  for i = 1, #found, 2 do
    local name = string.sub(found[i], 9)
    if room_of(name) > 0 then
      try_zset("queue", name)
      slots[#slots + 1] = {name = name, member = found[i], rank = tonumber(found[i + 1]), room = room_of(name)}
    end
  end
  return slots
end

local leases, expiries, records = {}, {}, {}

local function grant(id, attempts, rank, slot, payload)
  for _, value in ipairs({id, attempts, rank, slot, payload}) do leases[#leases + 1] = value end
  expiries[#expiries + 1], expiries[#expiries + 2] = now_ms + ttl_ms, id
  records[#records + 1] = id
  records[#records + 1] = cmsgpack.pack({attempts, rank, slot, worker, payload})
end

-- Returns how many that were: a queue that somebody has dropped is empty, though the slot is ready.
local function take(slot)
  local popped = redis.call("ZPOPMIN", key("queue", slot.name))
  local envelope = popped[1]
  if not envelope then return 0 end
  local attempts = string.byte(envelope, 9) + 1
  grant(string.sub(envelope, 1, 8), attempts, tonumber(popped[2]), slot.name, string.sub(envelope, 10))
  return 1
end

-- Take the first suspect, unless a request of a slot that has room goes before it.
local function take_suspect()
  local found = redis.call("ZRANGE", key("suspects"), 0, 0, "WITHSCORES")
  if not found[1] then return 0 end
  local envelope, rank = found[1], tonumber(found[2])
  local slot, rest = struct.unpack(">I4c0", envelope, 10)
  local first = ready_slots(wanted)[1]
  if room_of(slot) <= 0 or (first and first.rank < rank) then return 0 end
  redis.call("ZREM", key("suspects"), envelope)
  grant(string.sub(envelope, 1, 8), string.byte(envelope, 9) + 1, rank, slot, string.sub(envelope, rest))
  room[slot] = room_of(slot) - 1
  if room[slot] <= 0 then full = full + 1 end
  return 1
end

-- A slot just served goes behind all others whose heads rank equal.
local function insert(slots, slot)
  local at = 1
  while slots[at] and slots[at].rank <= slot.rank do at = at + 1 end
  table.insert(slots, at, slot)
end

local function serve(limit)
  local taken = limit > 0 and may_take_suspect and take_suspect() or 0
  local slots, served = limit > taken and ready_slots(limit - taken) or {}, {}
  while taken < limit and slots[1] do
    local slot = table.remove(slots, 1)
    taken, turn, slot.room = taken + take(slot), turn + 1, slot.room - 1
    slot.turn, served[slot.name] = turn, slot
    slot.rank = tonumber(redis.call("ZRANGE", key("queue", slot.name), 0, 0, "WITHSCORES")[2])
    if slot.rank and slot.room > 0 then insert(slots, slot) end
  end
  return taken, served
end

local function write_served(served)
  for name, slot in pairs(served) do
    redis.call("ZREM", key("ready"), slot.member)
    if slot.rank then
      redis.call("ZADD", key("ready"), slot.rank, packed(slot.turn) .. name)
      redis.call("HSET", key("turns"), name, packed(slot.turn))
    else
      redis.call("HDEL", key("turns"), name)
    end
  end
end

local function in_chunks(command, noun, values)
  for first = 1, #values, ARGUMENTS do
    redis.call(command, key(noun), unpack(values, first, math.min(first + ARGUMENTS - 1, #values)))
  end
end

local function has_ended(counts)
  if state[2] == "ended" then return true end
  if counts[2] + counts[3] + counts[7] > 0 then return false end
  if redis.call("ZCOUNT", key("busy"), now_ms - ttl_ms, "+inf") > 0 then return false end
  redis.call("HSET", KEYS[1], "phase", "ended", "ended_ms", now_ms)
  if state[4] ~= "" then
    redis.call("ZADD", key("ended"), now_ms, state[4])
    redis.call("ZREMRANGEBYRANK", key("ended"), 0, -1 - MAX_CRAWL_IDS)
  end
  ring_bell()
  return true
end

local counts = depth(ttl_ms)
local share = is_fair and math.max(1, math.ceil(counts[2] / counts[6])) or wanted
local taken, served = serve(state[5] and 0 or math.min(wanted, share))
write_served(served)
if taken > 0 then
  in_chunks("ZADD", "leases", expiries)
  in_chunks("HSET", "leased", records)
  redis.call("HSET", KEYS[1], "turn", turn)
  count("pending", -taken)
  count("leased", taken)
  write_counters()
  counts[2], counts[3] = counts[2] - taken, counts[3] + taken
end
if taken < wanted then redis.call("ZADD", key("hungry"), now_ms, worker) end
if is_idle and taken == 0 then
  redis.call("ZREM", key("busy"), worker)
else
  redis.call("ZADD", key("busy"), now_ms, worker)
end
local ended = has_ended(counts) and 1 or 0
return {OK, ended, next_due_ms(), counts, leases, orders_for(worker, state[5], state[6], state[7])}
