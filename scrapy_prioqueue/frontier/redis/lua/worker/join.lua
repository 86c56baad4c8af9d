-- Let a worker join the crawl: begin a new one, resume one, or return why not.
-- guarantee: nobody joins while the frontier is being cleared; an interrupted clearing is taken over; an existing
--   session is not set back, however late this call comes; a process that joins again begins no crawl after its own has
--   ended.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] worker
-- ARGV[3] nonce of this process: `<run id>.<number of its fences>`
-- ARGV[4] last_batch: number of the last batch that this process knows to be applied
-- ARGV[5] info: JSON about the worker
-- ARGV[6] lease_ttl_ms
-- ARGV[7] layout version
-- ARGV[8] tiers: JSON array of names
-- ARGV[9] order: lifo or fifo
-- ARGV[10] on_finish: restart or keep
-- ARGV[11] crawl_id, empty for none
-- ARGV[12] flush 0 or 1
-- ARGV[13] has_cleared 0 or 1: this worker has just cleared the scope of the last reply
-- ARGV[14] suspect_attempts: number of losses that makes a request a suspect
-- ARGV[15] dead_on: reasons, separated by commas, for which dead letters are kept
-- ARGV[16] dead_limit: maximum number kept per reason
-- ARGV[17] seen_name: the frontier that stores the fingerprints, empty for this one
-- ARGV[18] policy_digest: the policy is only needed if the last worker to join has another digest
-- ARGV[19] seen_shape: how to store fingerprints, see lib/seen.lua; must begin like that of existing ones
-- ARGV[20] revisit_s: seconds after which a fingerprint is new again, empty if no times are stored
-- ARGV[21] spider: class and arguments of the spider, empty for none
-- ARGV[22] epoch of this process's crawl, empty if it joins for the first time
-- ARGV[23] created_ms of that crawl, likewise
-- ARGV[24] suspect_groups: how many suspects a worker holds together, see lib/moves.lua
-- ARGV[25] policy: JSON object, see lib/policy.lua; empty if it is sent only on request
-- reply: {code, …}
--   4 this process has fenced later than this call was made
--   0 joined: {0, epoch, is_new, seen, created_ms, order, spider, joined_ms, policy_ms, change, identity,
--     last_ended_ms}; spider of
--     the worker that began the crawl; policy_ms when a worker last joined with another policy; change made by this
--     worker; identity: whose fingerprints the frontier has, empty for those of the project; last_ended_ms when the
--     crawl before a new one ended, empty if unknown
--   10 clear first: {10, scope}, scope being all, restart or keep
--   11 wait, another worker is clearing
--   12 crawl_id has ended
--   13 other workers are alive: {13, names}
--   14 another crawl is unfinished: {14, its crawl_id, pending, leased}
--   15 other layout: {15, its layout}
--   16 other tiers: {16, its tiers, pending, leased, names of other living workers}
--   17 other shape: {17, shape, seen, names of other living workers}; the shape of existing fingerprints, or else of
--     these workers
--   19 an import was interrupted: {19, its client}
--   20 the crawl of this process is over
--   21 send the policy, too
--   22 fingerprints that came from other software are stored here, not where this worker looks: {22, their number}
-- cost: O(workers)
-- flags: allow-oom

local CLEAR, WAIT, ENDED, ALIVE, OTHER, LAYOUT, TIERS, SHAPE, HALF, OVER, POLICY, ELSEWHERE
  = 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22

local worker, nonce, last_batch, ttl_ms = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[6])
local layout, tiers, crawl_id, flush = ARGV[7], ARGV[8], ARGV[11], ARGV[12] == "1"
local has_cleared = ARGV[13] == "1"

if ARGV[22] == "" then lib.doubt_clock(ttl_ms) end

local state = lib.named_fields({
  "layout", "phase", "crawl_id", "tiers", "cleaner", "cleaning_ms", "scope", "is_clear", "is_unjoined", "epoch",
  "created_ms", "policy", "ended_ms"})

-- The first write needs no memory, so that a worker can join a full server and help to drain it.
redis.call("ZREM", key("hungry"), worker)

local own_epoch, own_created_ms = tonumber(ARGV[22]), tonumber(ARGV[23])

local function other_workers()
  local names = {}
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", key("workers"), now_ms - ttl_ms, "+inf")) do
    if name ~= worker then names[#names + 1] = name end
  end
  return names
end

local function enter(is_new)
  -- A late call must not set the session back, or all further batches would be out of step.
  local reached = math.max(tonumber(last_batch), lib.session_batch(worker, nonce) or 0)
  redis.call("HSET", key("sessions"), worker, nonce .. ":" .. reached)
  local info = cjson.decode(ARGV[5])
  info.joined_ms = own_created_ms and info.joined_ms or now_ms
  redis.call("HSET", key("info"), worker, cjson.encode(info))
  redis.call("HSET", KEYS[1], "dead_on", ARGV[15], "dead_limit", ARGV[16], "suspect_groups", ARGV[24])
  local change = lib.apply_policy(ARGV[18], ARGV[25], worker, info.joined_ms)
  lib.write_field("state", "seen_name", ARGV[17] ~= "" and ARGV[17])
  lib.write_field("state", "revisit_s", ARGV[20] ~= "" and ARGV[20])
  lib.keep_shape(ARGV[17], ARGV[19], #other_workers() == 0)
  redis.call("HDEL", key("stops"), worker)
  if own_created_ms then lib.stop_again(worker, info.joined_ms) end
  redis.call("HDEL", KEYS[1], "evicted:" .. worker)
  if reached == 0 then
    redis.call("HDEL", key("work"), worker)
    redis.call("HDEL", key("slow"), worker)
  end
  lib.keep_clock()
  redis.call("ZADD", key("workers"), now_ms, worker)
  redis.call("ZADD", key("busy"), now_ms, worker)
  local now = lib.named_fields({"epoch", "created_ms", "order", "spider", "policy_ms", "identity"})
  if not now.spider then lib.write_field("state", "spider", ARGV[21] ~= "" and ARGV[21]) end
  return {OK, now.epoch, is_new and 1 or 0, lib.count_seen(), now.created_ms, now.order, now.spider or ARGV[21],
    tostring(info.joined_ms), now.policy_ms or "0", change or "", now.identity or "", is_new and state.ended_ms or ""}
end

local function begin()
  lib.begin_crawl(crawl_id, {
    "layout", layout, "tiers", tiers, "order", ARGV[9], "on_finish", ARGV[10], "suspect_attempts", ARGV[14]})
  return enter(true)
end

local function clear(scope)
  redis.call("HSET", KEYS[1], "phase", "clearing", "scope", scope, "cleaner", worker, "cleaning_ms", now_ms)
  return {CLEAR, scope}
end

-- A crawl begun by a program, before any worker joined, becomes that of the first worker.
local function take_over()
  redis.call("HDEL", KEYS[1], "is_unjoined")
  redis.call("HSET", KEYS[1], "crawl_id", crawl_id, "order", ARGV[9], "on_finish", ARGV[10],
    "suspect_attempts", ARGV[14])
  state.crawl_id = crawl_id
end

local function join_open()
  if not lib.is_own_name(ARGV[17]) and redis.call("HEXISTS", KEYS[1], "identity") == 1 then
    return {ELSEWHERE, tonumber(redis.call("HGET", KEYS[1], "seen") or 0)}
  end
  if state.is_unjoined then take_over() end
  local left = lib.depth(ttl_ms)
  local pending, leased = left[2] + left[7], left[3]
  if crawl_id ~= "" and crawl_id ~= state.crawl_id then
    if pending + leased > 0 or #other_workers() > 0 then return {OTHER, state.crawl_id, pending, leased} end
    return clear(ARGV[10])
  end
  if tiers ~= state.tiers then
    local others = other_workers()
    if pending + leased > 0 or #others > 0 then return {TIERS, state.tiers, pending, leased, others} end
    redis.call("HSET", KEYS[1], "tiers", tiers)
  end
  return enter(false)
end

-- The fingerprints that this worker will use, if it may join.
local function other_shape()
  local is_own = lib.is_own_name(ARGV[17])
  if is_own and (flush or state.phase == "clearing" and state.scope ~= "keep") then return nil end
  local goes_on = state.phase == "open" and (crawl_id == "" or crawl_id == state.crawl_id or state.is_unjoined)
  if is_own and not goes_on and ARGV[10] ~= "keep" then return nil end
  return lib.other_shape(ARGV[17], ARGV[19], #other_workers() == 0)
end

-- A process that joins again finds its own crawl, an earlier one if the server has lost that, or a later one. The
-- epoch of a later one may be the same or lower, if others have begun anew on an emptied server.
local function is_over()
  if not own_epoch or not state.created_ms then return false end
  if tonumber(state.epoch) > own_epoch then return true end
  local is_earlier = tonumber(state.created_ms) < own_created_ms
  local is_to_be_cleared = state.phase ~= "open" and (state.phase ~= "ended" or state.cleaner)
  return not is_earlier and is_to_be_cleared and true or false
end

local function comes_back()
  return own_created_ms and state.phase == "ended" and tonumber(state.created_ms) == own_created_ms
end

-- A crawl that begins has no policy yet.
local function lacks_policy()
  return ARGV[25] == "" and (state.phase ~= "open" or flush or state.policy ~= ARGV[18])
end

local function has_fenced_since()
  local run, fences = string.match(nonce, "^(.*)%.(%d+)$")
  local its_run, its_fences = string.match(redis.call("HGET", key("sessions"), worker) or "", "^(.*)%.(%d+):%d+$")
  return run ~= nil and run == its_run and tonumber(fences) < tonumber(its_fences)
end

local function join()
  if has_fenced_since() then return {SUPERSEDED} end
  if is_over() then return {OVER} end
  if lacks_policy() then return {POLICY} end
  -- The operations that it will send reopen the crawl.
  if comes_back() then return enter(false) end
  if state.phase == "importing" then
    if not lib.is_stale(state.cleaning_ms) then return {WAIT} end
    if not flush then return {HALF, state.cleaner} end
  end
  if state.layout and state.layout ~= layout and not (flush or has_cleared) then return {LAYOUT, state.layout} end
  local other, seen = other_shape()
  if other then return {SHAPE, other, seen, other_workers()} end
  if state.phase == "clearing" then
    if state.cleaner ~= worker and not lib.is_stale(state.cleaning_ms) then return {WAIT} end
    if has_cleared and state.cleaner == worker then return begin() end
    return clear(state.scope)
  end
  if flush then
    local others = other_workers()
    if others[1] then return {ALIVE, others} end
    if state.phase then return clear("all") end
  end
  if not state.phase then return begin() end
  if crawl_id ~= "" and redis.call("ZSCORE", key("ended"), crawl_id) then return {ENDED} end
  if state.phase == "open" then return join_open() end
  if state.is_clear == "1" and (state.scope == "restart" or ARGV[10] == "keep") then return begin() end
  return clear(ARGV[10])
end

return join()
