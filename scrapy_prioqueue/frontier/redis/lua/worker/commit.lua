-- Apply one batch of a worker's outbox: pushes and claims, then acks, releases and fails; report the worker as alive.
-- guarantee: all or nothing, even if it fails in the middle. A full server refuses a batch at its first write if it has
--   a push that is not a duplicate, and executes it otherwise. A batch is applied once; one that comes too early is not
--   applied.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] worker
-- ARGV[4] nonce
-- ARGV[5] batch number
-- ARGV[6] lease_ttl_ms
-- ARGV[7..] operations, each a letter and its arguments:
--   P rank slot start payload fingerprint mark delay    push; start 1 for a start request, 2 for one that goes before
--     earlier ones, else 0; fingerprint as in `lib/seen.lua`, empty if not filtered; mark empty for none;
--     delay empty or `<delay_ms>,<not_before_ms>`, the first from now on, the second as Unix time
--   C (as P) id attempts           claim; id empty if the request never had one
--   A id attempts spent            ack; id as 8 bytes; spent empty or `<bytes>,<milliseconds>`
--   R id attempts                  release
--   X id attempts delay_ms         refuse: this worker can't decode it; others get it after that time
--   F id attempts spent reason detail traceback    fail
-- reply: {code, duplicates, repeated starts, void, claimed}: arrays of the indexes of operations, counted from 0;
--   claimed: {index, id, attempts, index, …} of granted claims, by this call or an earlier one with the same batch
--   code: 0 applied, now or before; 1 other crawl; 2 unknown session; 3 out of step; 4 session superseded
-- cost: O(log n) per operation, and a look-up per level of the seen sets
-- flags:

local worker, nonce, number, ttl_ms = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local duplicates, repeated, void, claimed, claimed_new = {}, {}, {}, {}, 0

local epoch, phase, order, crawl_id, cleaner, has_refused
  = lib.read_state("epoch", "phase", "order", "crawl_id", "cleaner", "has_refused")
if phase == "ended" and cleaner then phase = "clearing" end
local last_batch, why = lib.last_batch_in(epoch, phase, worker, nonce)
if not last_batch then return {why} end
if number <= last_batch then
  -- Written again, so that a WAIT for replicas on a new connection waits for the earlier call's writes.
  redis.call("ZREM", key("hungry"), worker)
  lib.report_alive(worker)
  local known = number == last_batch and redis.call("HGET", key("claims"), worker)
  return {OK, duplicates, repeated, void, known and cmsgpack.unpack(known) or {}}
end
if number > last_batch + 1 then return {OUT_OF_STEP} end

local function note_known(index, known_by)
  local list = known_by == "mark" and repeated or duplicates
  list[#list + 1] = index
end

local function push(index, at)
  local known_by = lib.known_by(at + 1)
  if known_by then note_known(index, known_by) else lib.store(at + 1) end
end

local function grant(index, id, attempts, at, rank_now)
  local rank, slot, payload = tonumber(rank_now or ARGV[at + 1]), ARGV[at + 2], ARGV[at + 4]
  lib.write_lease(id, {attempts = attempts, rank = rank, slot = slot, worker = worker, payload = payload}, ttl_ms)
  for _, value in ipairs({index, id, attempts}) do claimed[#claimed + 1] = value end
end

-- Lease a request that was not leased before.
local function grant_anew(index, id, attempts, at, rank_now)
  local slot, payload = ARGV[at + 2], ARGV[at + 4]
  lib.begin_counted(id)
  lib.hold(payload, 1)
  if lib.read_policies().has_limits then
    lib.with_limits().charge(slot, now_ms)
    lib.touch_all(slot)
  end
  lib.note_granted(worker, redis.call("HGET", key("granted"), worker), id)
  grant(index, id, attempts, at, rank_now)
end

-- A lease that the server has lost is pending again, so the request is taken out of its queue.
local function claim(index, at)
  local rank, slot, payload = ARGV[at + 1], ARGV[at + 2], ARGV[at + 4]
  local id, attempts = ARGV[at + PUSH_LENGTH + 1], tonumber(ARGV[at + PUSH_LENGTH + 2])
  local lease = id ~= "" and lib.read_lease(id)
  -- After a loss of writes another request may have the id, so the payload is compared, too.
  if lease and lease.payload == payload then
    if lease.worker == worker then grant(index, id, lease.attempts, at, lease.rank) end
    return
  end
  local found, rank_now
  if id ~= "" then found, rank_now = lib.take_pending(id, attempts, rank, slot, payload) end
  if found then return grant_anew(index, id, found + 1, at, rank_now) end
  local known_by = lib.known_by(at + 1)
  if known_by then return note_known(index, known_by) end
  grant_anew(index, lib.new_id(at + 1), attempts, at)
  stored.accepted, claimed_new = stored.accepted + 1, claimed_new + 1
end

local given_back, done, done_of = 0, 0, {}
local function finish(index, letter, at)
  local id, attempts = ARGV[at + 1], tonumber(ARGV[at + 2])
  local lease = lib.held_lease(id, attempts, worker)
  if not lease then
    void[#void + 1] = index
  elseif letter == "R" then
    lib.give_back(id, lease, attempts - 1)
    given_back = given_back + 1
  elseif letter == "X" then
    lib.refuse(id, lease, tonumber(ARGV[at + 3]))
  else
    lib.drop_lease(id, lease)
    if ARGV[at + 3] ~= "" and policies.has_budgets then lib.with_budgets().settle(lease.payload, ARGV[at + 3]) end
    if letter == "F" then return lib.dead_letter(id, lease, ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]) end
    if attempts > 1 then lib.forget_losses(id) end
    if has_refused then lib.take_field(key("refused"), id) end
    done, done_of[lease.slot] = done + 1, (done_of[lease.slot] or 0) + 1
  end
end

local LENGTH = {P = PUSH_LENGTH + 1, C = PUSH_LENGTH + 3, A = 4, R = 3, X = 4, F = 7}

-- Positions of operations in ARGV and their indexes, alternating: of new requests, and of ends of leases.
local stores, ends = {}, {}
local slots, released, ended, is_plain = {}, {}, {}, true

local at, index, last = 7, 0, #ARGV
while at <= last do
  local letter = ARGV[at]
  if letter == "P" or letter == "C" then
    stores[#stores + 1], stores[#stores + 2], slots[ARGV[at + 2]] = at, index, true
    is_plain = is_plain and letter == "P" and ARGV[at + 6] == ""
  else
    ends[#ends + 1], ends[#ends + 2], ended[#ended + 1] = at, index, ARGV[at + 1]
    is_plain = is_plain and letter == "A" and ARGV[at + 2] == "1"
    if letter == "R" then released[#released + 1] = ARGV[at + 1] end
  end
  at, index = at + LENGTH[letter], index + 1
end
local pushes, acks = #stores / 2, #ends / 2
if pushes > 0 then lib.begin_storing(order, pushes) end
-- If nothing is stored, the first write needs no memory, so that acks succeed on a full server.
local is_stored = pushes > 0 and lib.has_room(worker, stores)
redis.call("ZREM", key("hungry"), worker)
if not is_stored then lib.report_alive(worker) end
lib.try_operations(is_plain, pushes, acks, ARGV[2])
for slot in pairs(slots) do lib.try_zset("queue", slot) end
lib.try_queues(released)

local function apply()
  for i = 1, #stores, 2 do
    local store = ARGV[stores[i]] == "P" and push or claim
    store(stores[i + 1], stores[i])
  end
  lib.know_leases(ended)
  for i = 1, #ends, 2 do finish(ends[i + 1], ARGV[ends[i]], ends[i]) end
  local pending = stored.accepted - stored.delayed - claimed_new
  lib.count("done", done)
  lib.count("accepted", stored.accepted)
  lib.count("pending", pending)
  lib.count("duplicates", #duplicates)
  lib.count("void", #void)
  local has_opened = lib.write_changes()
  if stored.accepted > 0 and phase == "ended" then lib.reopen(crawl_id) end
  lib.note_pace("a", stored.accepted)
  lib.note_pace("d", done)
  lib.note_served(done_of)
  if done > 0 then redis.call("HINCRBY", key("work"), worker, done) end
  local before = redis.call("HGET", key("claims"), worker)
  if #claimed > 0 then
    lib.replace_field(key("claims"), worker, before, cmsgpack.pack(claimed))
  elseif before then
    lib.note_undo("HSET", key("claims"), worker, before)
    redis.call("HDEL", key("claims"), worker)
  end
  if pending + given_back > 0 or has_opened then lib.wake_hungry() end
  lib.replace_field(key("sessions"), worker, nonce .. ":" .. last_batch, nonce .. ":" .. number)
  -- This comes last, since an addition to a filter can't be undone.
  lib.write_seen()
end

lib.all_or_nothing(apply)
lib.move_seen_on()
return {OK, duplicates, repeated, void, claimed}
