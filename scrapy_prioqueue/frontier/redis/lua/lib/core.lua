-- Keys, clock, counters and workers; joined in front of every script.
-- KEYS[1] is `{prioqueue:<name>}:state`; all other keys are built from its hash tag (see docs/architecture.md).
-- ARGV[1] is `<server_ms>+<most_ms> <worker>`, any part of it or empty; see `lib.clock_ms`.

local lib = {}

local prefix = string.sub(KEYS[1], 1, -6)

local OK, OTHER_CRAWL, UNKNOWN_SESSION, OUT_OF_STEP, SUPERSEDED = 0, 1, 2, 3, 4

-- A member or field that never exists, since it is not UTF-8. The empty name won't do: a slot may have it.
local NOBODY = "\255"

local function key(noun, id)
  if id == nil then return prefix .. noun end
  return prefix .. noun .. ":" .. id
end

-- Fingerprints are stored in this frontier, or in the one named by `seen_name`, which is read at first use.
local seen_prefix
function lib.seen_key(noun)
  if not seen_prefix then
    local name = redis.call("HGET", KEYS[1], "seen_name")
    seen_prefix = name and "{prioqueue:" .. name .. "}:" or prefix
  end
  return seen_prefix .. noun
end

function lib.count_seen() -- seldom
  return tonumber(redis.call("HGET", lib.seen_key("state"), "seen") or 0)
end

-- Call a command with many arguments in pieces, since Lua's stack has room for only some thousand.
function lib.call_with_all(command, name, values, option)
  local MOST = 4000
  for first = 1, #values, MOST do
    local last = math.min(first + MOST - 1, #values)
    if option then
      redis.call(command, name, option, unpack(values, first, last))
    else
      redis.call(command, name, unpack(values, first, last))
    end
  end
end

-- Drop members whose time has passed, only so many at once, since other clients wait.
function lib.drop_past(noun, latest_ms) -- policies
  local MOST = 1000
  local past = redis.call("ZRANGEBYSCORE", key(noun), "-inf", latest_ms, "LIMIT", 0, MOST)
  if past[1] then redis.call("ZREM", key(noun), unpack(past)) end
end

-- Without a value the field is deleted.
function lib.write_field(noun, field, value) -- seldom
  if value then redis.call("HSET", key(noun), field, value) else redis.call("HDEL", key(noun), field) end
end

-- How far the frontier's clock is ahead of the server's, the last known time, and whether the server's clock was set.
local ahead_ms, read_ms, has_jumped = 0, 0, false

-- The frontier's clock runs like the server's, but doesn't jump if that is set: neither back, nor forward by more than
-- the caller has measured. ARGV[1] has the server's time, for tests (otherwise `TIME`), and says that `worker` was
-- heard of at most `most_ms` ago.
function lib.clock_ms()
  local server_ms, most_ms, worker = string.match(ARGV[1], "^(%d*)%+?(%d*) ?(.*)$")
  if server_ms == "" then
    local time = redis.call("TIME")
    server_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local known = redis.call("HMGET", KEYS[1], "clock_ahead_ms", "clock_ms")
  local heard_ms = redis.call("ZRANGE", key("workers"), -1, -1, "WITHSCORES")[2]
  ahead_ms, read_ms = tonumber(known[1] or 0), math.max(tonumber(known[2] or 0), tonumber(heard_ms or 0))
  local found_ms = server_ms + ahead_ms
  local latest_ms = found_ms
  if most_ms ~= "" and found_ms - read_ms > 1000 then
    latest_ms = (redis.call("ZSCORE", key("workers"), worker) or found_ms) + most_ms
  end
  return lib.set_clock(math.max(read_ms, math.min(found_ms, latest_ms)), found_ms)
end

function lib.set_clock(at_ms, found_ms)
  if at_ms ~= found_ms then ahead_ms, has_jumped = ahead_ms + at_ms - found_ms, true end
  return at_ms
end

local now_ms = lib.clock_ms()

-- Store a correction of the clock; called when a worker is reported as alive.
function lib.keep_clock()
  if has_jumped then redis.call("HSET", KEYS[1], "clock_ahead_ms", ahead_ms) end
end

-- A worker that joins for the first time has measured nothing. The server's clock has jumped if clients listen to the
-- bell although no worker was heard of for longer than a living one is silent.
function lib.doubt_clock(ttl_ms) -- seldom
  local silence_ms = math.floor(ttl_ms / 3) -- living workers renew as often
  if read_ms == 0 or now_ms - read_ms <= silence_ms then return end
  local listeners = redis.pcall("PUBLISH", key("bell"), "")
  if type(listeners) ~= "number" or listeners == 0 then return end
  now_ms = lib.set_clock(read_ms + silence_ms, now_ms)
end

-- Sum up changes of counters in `stats`, so that each script writes them once.
local counted = {}

function lib.count(name, change)
  counted[name] = (counted[name] or 0) + change
end

function lib.write_counters()
  local gone = (counted.dead or 0) + (counted.removed or 0)
  if gone ~= 0 then lib.note_gone(gone) end
  for name, change in pairs(counted) do
    if change ~= 0 then lib.add_to_field(key("stats"), name, change) end
  end
  counted = {}
end

-- The counts that replies about the crawl contain, in this order; living workers come sixth.
function lib.depth(ttl_ms)
  local counts = redis.call("HMGET", key("stats"), "accepted", "pending", "leased", "dead", "done", "delayed")
  for i = 1, 6 do counts[i] = tonumber(counts[i] or 0) end
  table.insert(counts, 6, redis.call("ZCOUNT", key("workers"), now_ms - ttl_ms, "+inf"))
  return counts
end

-- Return the code with which a call of this crawl is refused, nil if it isn't. Epochs begin anew on a server that was
-- emptied, or came back with an old state. Nobody takes part in a crawl that is being cleared or was replaced.
function lib.refusal_of(epoch, phase)
  if not epoch or tonumber(epoch) < tonumber(ARGV[2]) then return UNKNOWN_SESSION end
  if epoch ~= ARGV[2] or phase == "clearing" or phase == "importing" then return OTHER_CRAWL end
  return nil
end

-- The session of a worker is `<nonce>:<number of its last batch>`; a later process under the same id replaces it.
-- Returns that number, or nil and the code of the refusal.
function lib.session_batch(worker, nonce)
  local session = redis.call("HGET", key("sessions"), worker)
  if not session then return nil, UNKNOWN_SESSION end
  local found, last_batch = string.match(session, "^(.*):(%d+)$")
  if found ~= nonce then return nil, SUPERSEDED end
  return tonumber(last_batch)
end

-- The same for a worker in the crawl of that epoch and phase.
function lib.last_batch_in(epoch, phase, worker, nonce)
  local refusal = lib.refusal_of(epoch, phase)
  if refusal then return nil, refusal end
  return lib.session_batch(worker, nonce)
end

function lib.report_alive(worker)
  lib.keep_clock()
  redis.call("ZADD", key("workers"), now_ms, worker)
  redis.call("ZADD", key("busy"), "XX", now_ms, worker)
end

function lib.forget_worker(worker) -- seldom
  for _, noun in ipairs({"workers", "busy", "hungry"}) do redis.call("ZREM", key(noun), worker) end
  redis.call("SREM", key("returning"), worker)
  for _, noun in ipairs({"sessions", "info", "claims", "stops", "work", "slow"}) do
    redis.call("HDEL", key(noun), worker)
  end
  redis.call("HSET", KEYS[1], "clock_ms", now_ms)
  lib.forget_granted(worker)
end

-- Wake waiting workers. Those whose user has no rights to the channel poll instead.
function lib.ring_bell() -- seldom
  redis.pcall("PUBLISH", key("bell"), "")
end

-- Wake the workers that got less than they asked for, if there are any.
function lib.wake_hungry()
  if redis.call("ZCARD", key("hungry")) > 0 then
    redis.pcall("DEL", key("hungry"))
    lib.ring_bell()
  end
end
