-- Return what a worker without work waits for.
-- guarantee: nothing changes.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] worker that asks; its own leases are left out
-- ARGV[3] lease_ttl_ms
-- ARGV[4] maximum number of leases examined
-- ARGV[5] maximum number of slots named
-- reply: {code, counts, slots, holders, busy}
--   code: 0 fine
--   counts: {pending, leased, delayed, due_in_ms, paused, slots, last_opens_in_ms, full_slots, now_ms}
--   slots: {slot, opens_in_ms, closed, slot, …}, the first to open; closed if its site has asked for a pause
--   holders: {worker, leases, expires_in_ms, heard_ms, info, slow, worker, …} of those leases; JSON as stored
--   busy: {worker, slow, worker, …} of other living workers that have not reported that they are idle
-- cost: O(leases examined + workers)
-- flags: allow-oom

local own, ttl_ms, most_leases, most_slots = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local holders, order = {}, {}
local leases = redis.call("ZRANGE", key("leases"), 0, most_leases - 1, "WITHSCORES")
for i = 1, #leases, 2 do
  local lease, expires_ms = lib.read_lease(leases[i]), tonumber(leases[i + 1])
  if lease and lease.worker ~= own then
    local holder = holders[lease.worker]
    if not holder then
      holder = {leases = 0, expires_ms = expires_ms}
      holders[lease.worker], order[#order + 1] = holder, lease.worker
    end
    holder.leases, holder.expires_ms = holder.leases + 1, math.max(holder.expires_ms, expires_ms)
  end
end

local held = {}
for _, worker in ipairs(order) do
  local holder, heard_ms = holders[worker], redis.call("ZSCORE", key("workers"), worker)
  held[#held + 1], held[#held + 2], held[#held + 3] = worker, holder.leases, holder.expires_ms - now_ms
  held[#held + 1] = heard_ms and now_ms - tonumber(heard_ms) or -1
  held[#held + 1] = redis.call("HGET", key("info"), worker) or ""
  held[#held + 1] = redis.call("HGET", key("slow"), worker) or ""
end

local busy = {}
for _, worker in ipairs(redis.call("ZRANGEBYSCORE", key("busy"), now_ms - ttl_ms, "+inf")) do
  if worker ~= own and not holders[worker] then
    busy[#busy + 1], busy[#busy + 2] = worker, redis.call("HGET", key("slow"), worker) or ""
  end
end

local waiting, later = key("waiting"), "(" .. now_ms
local slots, found = {}, redis.call("ZRANGEBYSCORE", waiting, later, "(+inf", "WITHSCORES", "LIMIT", 0, most_slots)
for i = 1, #found, 2 do
  local closed_ms = redis.call("ZSCORE", key("closed"), found[i])
  slots[#slots + 1], slots[#slots + 2] = found[i], math.ceil(tonumber(found[i + 1]) - now_ms)
  slots[#slots + 1] = closed_ms and tonumber(closed_ms) > now_ms and 1 or 0
end
local last = redis.call("ZREVRANGEBYSCORE", waiting, "(+inf", later, "WITHSCORES", "LIMIT", 0, 1)[2]
local due = redis.call("ZRANGE", key("delayed"), 0, 0, "WITHSCORES")[2]
local counts = redis.call("HMGET", key("stats"), "pending", "leased", "delayed")

return {OK, {
  tonumber(counts[1] or 0), tonumber(counts[2] or 0), tonumber(counts[3] or 0), due and math.ceil(due - now_ms) or 0,
  redis.call("HGET", KEYS[1], "paused") and 1 or 0, redis.call("ZCOUNT", waiting, later, "(+inf"),
  last and math.ceil(last - now_ms) or 0, redis.call("ZCOUNT", waiting, "+inf", "+inf"), now_ms}, slots, held, busy}
