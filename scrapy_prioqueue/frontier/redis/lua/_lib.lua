-- Keys, clock, counters and the moves of a request, put in front of every script at load.
-- KEYS[1] is `{prioqueue:<name>}:state`; all other keys are built from its hash tag (see docs/architecture.md).
-- ARGV[1] is the time in milliseconds in tests, and empty in production: then the server's clock counts.

local prefix = string.sub(KEYS[1], 1, -6)

local OK, OTHER_CRAWL, UNKNOWN_SESSION, OUT_OF_STEP, SUPERSEDED = 0, 1, 2, 3, 4

local function key(noun, id)
  if id == nil then return prefix .. noun end
  return prefix .. noun .. ":" .. id
end

local function clock_ms()
  if ARGV[1] ~= "" then return tonumber(ARGV[1]) end
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now_ms = clock_ms()

-- Sum up changes of the counters in `stats`, so that each script writes them once.
local counted = {}

local function count(name, change)
  counted[name] = (counted[name] or 0) + change
end

local function write_counters()
  for name, change in pairs(counted) do
    if change ~= 0 then redis.call("HINCRBY", key("stats"), name, change) end
  end
  counted = {}
end

-- The six counts that every reply about the crawl carries.
local function depth(ttl_ms)
  local stats = redis.call("HMGET", key("stats"), "accepted", "pending", "leased", "dead", "done")
  for i = 1, 5 do stats[i] = tonumber(stats[i] or 0) end
  stats[6] = redis.call("ZCOUNT", key("workers"), now_ms - ttl_ms, "+inf")
  return stats
end

-- Nobody takes part in a crawl that is over and being cleared, or that another one has followed.
local function is_other_crawl(epoch, phase)
  return epoch ~= ARGV[2] or phase == "clearing"
end

-- The session of a worker is `<nonce>:<number of its last batch>`; a later process under the same id replaces it.
-- Returns that number, or nil and the code that says why not.
local function session_position(worker, nonce)
  local session = redis.call("HGET", key("sessions"), worker)
  if not session then return nil, UNKNOWN_SESSION end
  local found, position = string.match(session, "^(.*):(%d+)$")
  if found ~= nonce then return nil, SUPERSEDED end
  return tonumber(position)
end

-- A pending request is `<8 bytes id><1 byte attempts><payload>` in its slot's queue. The id is also the order of ties.
-- A leased one is a MessagePack array {attempts, rank, slot, worker, payload} under its id.
local function read_lease(id)
  local value = redis.call("HGET", key("leased"), id)
  if not value then return nil end
  local fields = cmsgpack.unpack(value)
  return {attempts = fields[1], rank = fields[2], slot = fields[3], worker = fields[4], payload = fields[5]}
end

local function held_lease(id, attempts, worker)
  local lease = read_lease(id)
  if lease and lease.worker == worker and lease.attempts == attempts then return lease end
  return nil
end

local function drop_lease(id)
  redis.call("ZREM", key("leases"), id)
  redis.call("HDEL", key("leased"), id)
  count("leased", -1)
end

-- Slots whose queue this script has changed, in that order; `write_slots` brings `ready` and `turns` in line with them.
local touched = {}

local function touch(slot)
  if not touched[slot] then
    touched[slot] = true
    touched[#touched + 1] = slot
  end
end

local function give_back(id, lease, attempts)
  drop_lease(id)
  redis.call("ZADD", key("queue", lease.slot), lease.rank, id .. string.char(attempts) .. lease.payload)
  count("pending", 1)
  touch(lease.slot)
end

local function bury(id, lease, reason, detail)
  drop_lease(id)
  redis.call("HSET", key("dead"), id,
    cmsgpack.pack({reason, detail, lease.attempts, lease.rank, lease.slot, lease.worker, now_ms, lease.payload}))
  redis.call("ZADD", key("died"), now_ms, id)
  count("dead", 1)
end

-- Give back what its worker lost, or give it up where it was lost too often.
local function give_back_lost(id, lease, max_attempts)
  if lease.attempts < max_attempts then return give_back(id, lease, lease.attempts) end
  local detail = "leased " .. lease.attempts .. " times and never acked; last by worker " .. lease.worker
  bury(id, lease, "lease", detail)
end

local function packed(number)
  return struct.pack(">I8", number)
end

local function write_slots()
  for _, slot in ipairs(touched) do
    local head = redis.call("ZRANGE", key("queue", slot), 0, 0, "WITHSCORES")
    local turn = redis.call("HGET", key("turns"), slot)
    if head[1] then
      if not turn then
        turn = packed(redis.call("HINCRBY", KEYS[1], "turn", 1))
        redis.call("HSET", key("turns"), slot, turn)
      end
      redis.call("ZADD", key("ready"), head[2], turn .. slot)
    elseif turn then
      redis.call("ZREM", key("ready"), turn .. slot)
      redis.call("HDEL", key("turns"), slot)
    end
  end
  touched = {}
end

-- Wake the workers that went away with less than they asked for. A user without rights to the channel polls instead.
local function ring_bell()
  redis.pcall("PUBLISH", key("bell"), "")
end
