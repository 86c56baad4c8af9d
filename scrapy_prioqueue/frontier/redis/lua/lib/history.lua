-- The history of a crawl: samples of the whole frontier, at most `MOST_SAMPLES`.

-- When that many are stored, every second one is dropped and the time between samples is doubled. Counters in a sample
-- count from the beginning of the crawl, so dropping one loses no event. The hash `history` has the samples as fields
-- `1` to `count`, in `sums` the figures of all runs together, and in `dropped` the stats of those that aren't kept.
local MOST_SAMPLES, FIRST_STEP_MS = 360, 2000

-- Each look is a command: tiers times slots. With more slots the depths of tiers are estimated.
local MOST_LOOKS, LEAST_SLOTS = 200, 5

local SAMPLED_COUNTERS = {
  "accepted", "pending", "delayed", "leased", "done", "dead", "duplicates", "reaped", "void", "removed"}

-- Figures of runs; `latency`, a list, is summed, too.
local SUMMED = {"pages", "items", "errors", "retries", "escalations"}

-- Add what a run has counted since its last record to the sums of its crawl, and return these.
function lib.add_to_sums(before, after) -- seldom
  local sums = cjson.decode(redis.call("HGET", key("history"), "sums") or "{}")
  local function add(to, name, old, new) to[name] = (to[name] or 0) + math.max(0, (new or 0) - (old or 0)) end
  for _, name in ipairs(SUMMED) do add(sums, name, before[name], after[name]) end
  local latency, known = sums.latency or {}, before.latency or {}
  for i, count in ipairs(after.latency) do add(latency, i, known[i], count) end
  sums.latency = latency
  local by_tier, before_by_tier = sums.by_tier or {}, before.tiers or {}
  for tier, count in pairs(after.tiers or {}) do add(by_tier, tier, before_by_tier[tier], count) end
  sums.by_tier = by_tier
  redis.call("HSET", key("history"), "sums", cjson.encode(sums))
  return sums
end

-- Stats that are names of slots differ from run to run; with more stats, further ones aren't kept.
local MOST_NAMES = 1000

local function object_in(text)
  local is_fine, found = pcall(cjson.decode, text or "{}")
  return is_fine and type(found) == "table" and found or {}
end

-- Whether a stat is a maximum or minimum; as `_is_of` in frontier/runs.py.
local function is_of(name, word)
  return string.find("_" .. string.gsub(name, "/", "_") .. "_", "_" .. word .. "_", 1, true) ~= nil
end

local function joined(name, one, other)
  if is_of(name, "min") then return math.min(one, other) end
  local is_peak = is_of(name, "max") or name == "memusage/startup"
  return is_peak and math.max(one, other) or one + other
end

local function join_stats(sums, stats)
  local room = MOST_NAMES
  for _ in pairs(sums) do room = room - 1 end
  for name, value in pairs(stats) do
    if sums[name] then
      sums[name] = joined(name, sums[name], value)
    elseif room > 0 then
      sums[name], room = value, room - 1
    end
  end
end

-- Delete runs; those of this crawl stay in its totals.
function lib.drop_runs(runs, epoch) -- seldom
  local sums = object_in(redis.call("HGET", key("history"), "dropped"))
  local stats = sums.stats or {}
  for _, run in ipairs(runs) do
    local record = object_in(redis.call("HGET", key("runs"), run))
    if record.epoch == epoch then
      sums.runs = (sums.runs or 0) + 1
      sums.lost = (sums.lost or 0) + (record.reason and 0 or 1)
      sums.began_ms = math.min(sums.began_ms or record.joined_ms, record.joined_ms)
      join_stats(stats, object_in(redis.call("HGET", key("numbers"), run)))
    end
  end
  sums.stats = stats
  if sums.runs then redis.call("HSET", key("history"), "dropped", cjson.encode(sums)) end
  redis.call("ZREM", key("ran"), unpack(runs))
  redis.call("HDEL", key("runs"), unpack(runs))
  redis.call("HDEL", key("numbers"), unpack(runs))
end

-- Slots with pending requests, and whether these are only some of them.
local function some_slots(most)
  local is_split, slots = redis.call("HEXISTS", KEYS[1], "lanes") == 1, {}
  for _, field in ipairs(redis.call("HRANDFIELD", key("turns"), most)) do
    slots[is_split and string.gsub(field, "^%d+:", "") or field] = true
  end
  return slots, redis.call("HLEN", key("turns")) > most
end

-- Pending requests by tier, best first.
local function depths_of_tiers(count, pending, suspects)
  local slots, are_some = some_slots(math.max(LEAST_SLOTS, math.floor(MOST_LOOKS / count)))
  local depths, found, apart = {}, 0, {}
  for tier = 1, count do
    local middle = (tier - 1) * TIER_WIDTH
    local low, high = string.format("%.0f", middle - HALF_TIER), string.format("(%.0f", middle + HALF_TIER)
    depths[tier] = 0
    for slot in pairs(slots) do depths[tier] = depths[tier] + redis.call("ZCOUNT", key("queue", slot), low, high) end
    apart[tier] = suspects > 0 and redis.call("ZCOUNT", key("suspects"), low, high) or 0
    found = found + depths[tier]
  end
  local scale = are_some and (pending - suspects) / math.max(1, found) or 1
  for tier = 1, count do depths[tier] = math.floor(depths[tier] * scale + 0.5) + apart[tier] end
  return depths
end

-- Dead letters of this crawl that are kept, by reason.
local function letters_by_reason(created_ms)
  local found = {}
  for _, reason in ipairs(REASONS) do
    local first, last = lib.died_score(reason, created_ms), lib.died_score(reason, REASON_WIDTH - 1)
    local count = redis.call("ZCOUNT", key("died"), first, last)
    if count > 0 then found[reason] = count end
  end
  return found
end

-- Used memory of the server in bytes, and its limit; 0 if the user may not read it.
local function server_memory()
  local info = redis.pcall("INFO", "memory")
  if type(info) ~= "string" then return 0, 0 end
  local function number_of(name) return tonumber(string.match(info, "\n" .. name .. ":(%d+)")) or 0 end
  return number_of("used_memory"), number_of("maxmemory")
end

-- Slots in lanes; at least that many if they are in several.
local function count_in_lanes()
  local most = 0
  for _, lane in ipairs(lib.all_lanes()) do most = math.max(most, redis.call("ZCARD", lane.ready)) end
  return most
end

local function sample_of(ttl_ms, sums)
  local counters = redis.call("HMGET", key("stats"), unpack(SAMPLED_COUNTERS))
  local tiers, created_ms = unpack(redis.call("HMGET", KEYS[1], "tiers", "created_ms"))
  local sample = {ms = now_ms, suspects = redis.call("ZCARD", key("suspects")), sums = sums}
  for i, name in ipairs(SAMPLED_COUNTERS) do sample[name] = tonumber(counters[i] or 0) end
  sample.tiers = depths_of_tiers(#cjson.decode(tiers or "[]"), sample.pending, sample.suspects)
  sample.letters = letters_by_reason(tonumber(created_ms or 0))
  sample.workers = redis.call("ZCOUNT", key("workers"), now_ms - ttl_ms, "+inf")
  sample.waiting = redis.call("ZCARD", key("waiting"))
  sample.slots = count_in_lanes() + sample.waiting
  sample.seen = lib.count_seen()
  sample.memory, sample.memory_limit = server_memory()
  return cjson.encode(sample)
end

-- Drop every second sample but the first one; return how many are left.
local function thin_out()
  local left = math.floor((MOST_SAMPLES + 1) / 2)
  for number = 2, left do
    redis.call("HSET", key("history"), number, redis.call("HGET", key("history"), 2 * number - 1))
  end
  for number = left + 1, MOST_SAMPLES do redis.call("HDEL", key("history"), number) end
  return left
end

-- Store a sample if one is due. If none is, a worker that closes replaces the last one, so that the history has the end
-- of the crawl. Returns the milliseconds until the next one is due.
function lib.keep_history(sums, ttl_ms, is_closing) -- seldom
  local found = redis.call("HMGET", key("history"), "count", "step_ms", "sampled_ms")
  local count, step_ms = tonumber(found[1] or 0), tonumber(found[2] or FIRST_STEP_MS)
  local left_ms = (tonumber(found[3]) or -step_ms) + step_ms - now_ms
  if left_ms > 0 and not is_closing then return left_ms end
  if left_ms <= 0 or count == 0 then count = count + 1 end
  if count > MOST_SAMPLES then count, step_ms = thin_out() + 1, step_ms * 2 end
  local sample = sample_of(ttl_ms, sums)
  redis.call("HSET", key("history"), count, sample, "count", count, "step_ms", step_ms, "sampled_ms", now_ms)
  return step_ms
end
