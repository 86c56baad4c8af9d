-- Reap and promote what is due, lease requests to a worker, note whether it is idle, and end the crawl if it is over.
-- guarantee: it works on a full server, since its first write needs no memory. If it fails in the middle, nothing is
--   leased; expired and due requests may have been moved.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- ARGV[5] last_batch: number of the last batch that this worker knows to be applied
-- ARGV[6] lease_ttl_ms
-- ARGV[7] limit: maximum number of requests
-- ARGV[8] slot_limit: maximum number of each slot without a room
-- ARGV[9] is_idle 0 or 1
-- ARGV[10] is_fair 0 or 1
-- ARGV[11] suspects: `<room>,<held>`: how many more may come within the group of those held, and how many are held
-- ARGV[12] later_limit: maximum number of requests that start at once or soon
-- ARGV[13] horizon_ms: how far ahead soon reaches
-- ARGV[14] reserve_ms: time in which a request of a better tier must start to take a place from a ready worse one
-- ARGV[15] max_attempts: number of losses after which a request is given up
-- ARGV[16] reap_limit: maximum number of leases reaped, and of delayed requests made pending
-- ARGV[17] away_ms: how long this worker was cut off, until it has reported all that it did meanwhile; else 0
-- ARGV[18] ordered_ms: time of the newest operator's command that this worker knows
-- ARGV[19..] pairs: slot, room
-- reply: {code, has_ended, next_due_ms, depth, leases, orders, reaped, new_letters, starts, over, must_ask, refusals,
--   held}
--   code: 0 fine; 1 other crawl; 2 unknown session; 3 batches or commands are lost; 4 session superseded
--   next_due_ms: until the next lease expires, request is due or slot opens, -1 for never
--   depth: {accepted, pending, leased, dead, done, workers, delayed}
--   orders: {paused, drained, reason, flooded, ordered_ms, letters_dropped, policy_ms}: 0 or 1; 0 or 1; why this worker
--     must stop, or empty; 1 in a flood, 2 at the pending limit, else 0; time of the newest command; reasons of dropped
--     dead letters, separated by commas; when a worker last joined with another policy
--   leases: {id, attempts, rank, slot, payload, id, …} in the order to be served
--   new_letters: {id, value, id, …} of the dead letters of requests that were lost too often, and of foreign entries
--   starts: {index, start_in_ms, late_ms or -1, index, …} of leases that have to wait or must not start late
--   over: {budget key, budget key, …}: the exhausted key of each request that has become a dead letter
--   must_ask: the sum of 1 if slots have limits and 2 if requests have budgets
--   refusals: {id, count, id, …} of requests that all living workers have refused, and how often
--   held: pending requests that water marks don't count, see lib/floods.lua; 0 below the marks
-- cost: O(limit * log n + rooms)
-- flags: allow-oom

local MAX_CRAWL_IDS = 1000

local worker, nonce, ttl_ms = ARGV[3], ARGV[4], tonumber(ARGV[6])
local wanted, is_idle, is_fair = tonumber(ARGV[7]), ARGV[9] == "1", ARGV[10] == "1"

local epoch, phase, unsorted, crawl_id, paused, drained, has_stops, has_marks, weights, reopen, has_refused,
  returning_ms, newest_ms, letters_dropped, policy_ms = lib.read_state(
    "epoch", "phase", "unsorted", "crawl_id", "paused", "drained", "has_stops", "has_marks", "weights", "reopen",
    "has_refused", "returning_ms", "ordered_ms", "letters_dropped", "policy_ms")
local last_batch, why = lib.last_batch_in(epoch, phase, worker, nonce)
if not last_batch then return {why} end
local ordered_ms = tonumber(newest_ms or 0)
if last_batch < tonumber(ARGV[5]) or ordered_ms < tonumber(ARGV[18]) then return {OUT_OF_STEP} end

redis.call("ZREM", key("hungry"), worker)
lib.keep_clock()
redis.call("ZADD", key("workers"), now_ms, worker)
if not is_idle then redis.call("ZADD", key("busy"), now_ms, worker) end
local first_due_ms = lib.first_due_ms()
local is_due = first_due_ms <= now_ms
if is_due or policies.counting or unsorted or reopen or has_refused then
  lib.try_writes(false, ARGV[2])
elseif wanted > 0 or lib.has_policies() then
  if is_idle then lib.try_zset("busy") end
  lib.try_serving()
  if lib.has_policies() then lib.try_policies() end
  redis.call("HSET", KEYS[1], "epoch", ARGV[2])
end
local away_ms = tonumber(ARGV[17])
local wait_ms = (away_ms > 0 or returning_ms) and lib.awaits_returns(worker, away_ms, ttl_ms, returning_ms)
if not wait_ms then lib.forget_silent_workers(ttl_ms) end

asked.worker, asked.expires = worker, string.format("%.0f", now_ms + ttl_ms)
asked.horizon_ms, asked.reserve_ms, asked.slot_limit = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[8])
asked.places = math.max(wanted, tonumber(ARGV[12]))
asked.has_refused, asked.since_ms = has_refused, now_ms - ttl_ms
for i = 19, #ARGV, 2 do
  asked.room[ARGV[i]] = tonumber(ARGV[i + 1])
  if asked.room[ARGV[i]] <= 0 then asked.full = asked.full + 1 end
end

local function serve_all()
  -- All queues are read before anything is taken from one, so that a key of another type is refused here.
  local soon = lib.soon_slots()
  asked.is_exact = policies.has_limits or policies.has_budgets
  for _, lane in ipairs(lib.all_lanes()) do lib.fill(lane, soon) end
  local room, held = string.match(ARGV[11], "(%d+),(%d+)")
  lib.take_suspects(tonumber(room), tonumber(held))
  turn = tonumber(redis.call("HGET", KEYS[1], "turn") or 0)
  while asked.limit > 0 or asked.later > 0 do
    local entry, start_ms = lib.next_entry()
    if not entry or asked.must_return then return end
    lib.serve(entry, start_ms)
  end
end

local function has_ended(counts)
  if phase == "ended" then return true end
  if wait_ms or counts[2] + counts[3] + counts[7] > 0 then return false end
  if redis.call("ZCOUNT", key("busy"), now_ms - ttl_ms, "+inf") > 0 then return false end
  lib.note_undo("HSET", KEYS[1], "phase", "open")
  redis.call("HSET", KEYS[1], "phase", "ended", "ended_ms", now_ms)
  if crawl_id ~= "" then
    redis.call("ZADD", key("ended"), now_ms, crawl_id)
    redis.call("ZREMRANGEBYRANK", key("ended"), 0, -1 - MAX_CRAWL_IDS)
  end
  lib.ring_bell()
  return true
end

-- First apply expiries, due times and operators' changes. Each step is complete when the next one begins.
local reaped, letters, must_return, is_counting = 0, {}, false, false
local function catch_up()
  if is_due and not wait_ms then reaped = lib.reap(tonumber(ARGV[15]), ARGV[16]) end
  letters, new_letters = new_letters, {}
  lib.keep_effects()
  -- A lease that is being counted must not be counted twice, nor others be leased beyond a limit.
  is_counting = lib.read_policies().counting and lib.count_leases()
  lib.keep_effects()
  if unsorted then lib.sort_slots() end
  lib.keep_effects()
  must_return = policies.has_limits and reopen and lib.look_again(reopen)
  if policies.has_limits then lib.open_slots() end
  if policies.limits_end_ms and policies.limits_end_ms <= now_ms and not must_return then lib.finish_limits() end
  lib.keep_effects()
end

local counts
local function hand_out()
  counts = lib.depth(ttl_ms)
  local share = is_fair and math.max(1, math.ceil(counts[2] / counts[6])) or wanted
  local may_take = not (paused or is_counting or wait_ms)
  if may_take then asked.limit, asked.later = math.min(wanted, share), tonumber(ARGV[12]) end
  lib.read_weights(weights)
  local limit = asked.limit
  if has_marks then lib.look_at_flood(counts[2], counts[3]) end
  if asked.limit + asked.later > 0 then serve_all() end
  local taken, over, aside, foreign = granted.count, #granted.over, granted.aside, #granted.foreign / 2
  lib.read_granted()
  lib.write_served()
  lib.write_granted()
  lib.count("pending", -taken - over - aside)
  lib.count("leased", taken)
  lib.write_changes()
  lib.write_passes()
  counts[1], counts[2], counts[3] = counts[1] + foreign, counts[2] - taken - over - aside, counts[3] + taken
  counts[4], counts[7] = counts[4] + over + foreign, counts[7] + aside
  if limit - asked.limit < wanted then redis.call("ZADD", key("hungry"), now_ms, worker) end
  if is_idle and taken == 0 then
    redis.call("ZREM", key("busy"), worker)
  elseif is_idle then
    redis.call("ZADD", key("busy"), now_ms, worker)
  end
  return has_ended(counts)
end

lib.all_or_nothing(catch_up)
local ended = lib.all_or_nothing(hand_out) and 1 or 0
for _, part in ipairs(granted.foreign) do letters[#letters + 1] = part end
if granted.count > 0 then first_due_ms = math.min(first_due_ms, now_ms + ttl_ms) end
local must_ask_again = must_return or asked.must_return or is_counting or granted.unfit >= MOST_UNFIT
local is_same_due = not is_due and granted.aside == 0
local due_ms = must_ask_again and 0 or lib.next_due_ms(asked.horizon_ms, is_same_due and first_due_ms)
local reason = has_stops and redis.call("HGET", key("stops"), worker) or ""
local flooded = flood.is_at_limit and 2 or flood.is_on and 1 or 0
local orders = {paused and 1 or 0, drained and 1 or 0, reason, flooded, ordered_ms, letters_dropped or "",
  tonumber(policy_ms or 0)}
if wait_ms then due_ms = wait_ms end
local must_ask = (policies.has_limits and 1 or 0) + (policies.has_budgets and 2 or 0)
return {OK, ended, due_ms, counts, granted.leases, orders, reaped, letters, granted.starts, granted.over, must_ask,
  granted.refusals, flood.held}
