-- Dead letters: creating, keeping, dropping and removing them, also of entries that another program has written.

-- Dead letters that this script has created: ids and values alternating.
local new_letters = {}

-- In `died` the dead letters of a reason are together, by time of death; `wire.py` has the same numbers.
local REASONS, REASON_WIDTH = {"download", "callback", "lease", "decode", "budget", "escalation"}, 2 ^ 42

function lib.died_score(reason, died_ms) -- seldom
  for number, name in ipairs(REASONS) do
    if name == reason then died_ms = number * REASON_WIDTH + died_ms end
  end
  return string.format("%.0f", died_ms)
end

local function has_reason(reasons, reason)
  return string.find("," .. reasons .. ",", "," .. reason .. ",", 1, true) ~= nil
end

-- The state of letters, and the reasons of which none may be dropped; read once per script.
local letter_state

local function read_letter_state()
  if letter_state then return letter_state end
  local found = redis.call("HMGET", KEYS[1], "epoch", "dead_on", "dead_limit", "created_ms", "letters_dropped")
  letter_state = {
    epoch = found[1], kept = found[2], limit = tonumber(found[3]), created_ms = tonumber(found[4]),
    dropped = found[5], is_whole = {}}
  return letter_state
end

-- Note that letters of a reason are dropped in this crawl; workers warn about it.
local function note_dropped(reason)
  local before = letter_state.dropped
  if before and has_reason(before, reason) then return end
  letter_state.dropped = before and before .. "," .. reason or reason
  lib.replace_field(KEYS[1], "letters_dropped", before, letter_state.dropped)
end

-- Drop the oldest letters of a reason if there are too many; only some at a time, since the limit may have become much
-- lower. Those over budget can be replayed once there is room, so all letters of this crawl are kept.
local function drop_letters(reason)
  local MOST_DROPPED = 10
  if letter_state.is_whole[reason] then return end
  local first, last = lib.died_score(reason, 0), lib.died_score(reason, REASON_WIDTH - 1)
  local surplus = math.min(MOST_DROPPED, redis.call("ZCOUNT", key("died"), first, last) - letter_state.limit)
  if surplus <= 0 then return end
  if reason == "budget" then last = "(" .. lib.died_score(reason, letter_state.created_ms) end
  local oldest = redis.call("ZRANGEBYSCORE", key("died"), first, last, "WITHSCORES", "LIMIT", 0, surplus)
  letter_state.is_whole[reason] = not oldest[1]
  local own = 0
  for i = 1, #oldest, 2 do
    local value = lib.take_field(key("dead"), oldest[i])
    if value and lib.died_in(cmsgpack.unpack(value), letter_state.epoch) then own = own + 1 end
    lib.take_member(key("died"), oldest[i + 1], oldest[i])
  end
  if oldest[1] then note_dropped(reason) end
  lib.count("dead_dropped", own)
end

-- Keep a dead letter if its reason is kept.
function lib.keep_letter(id, reason, value) -- seldom
  if not has_reason(read_letter_state().kept, reason) then return lib.count("dead_dropped", 1) end
  lib.replace_field(key("dead"), id, nil, value)
  lib.add_member(key("died"), lib.died_score(reason, now_ms), id)
  drop_letters(reason)
end

-- Drop the record of workers lost with a request, and return it.
function lib.forget_losses(id) -- seldom
  lib.take_field(key("alone"), id)
  return lib.take_field(key("lost"), id)
end

-- Make a dead letter of a request that is no longer in a queue or leased.
function lib.dead_letter(id, lease, reason, detail, traceback, lost_by) -- seldom
  -- A request that was never leased was never lost.
  local earlier = lease.attempts > 0 and lib.forget_losses(id)
  lib.take_field(key("refused"), id)
  local value = cmsgpack.pack({
    reason, detail, lease.attempts, lease.rank, lease.slot, lease.worker, now_ms, lease.payload, traceback or "",
    lost_by or earlier or "", read_letter_state().epoch})
  new_letters[#new_letters + 1], new_letters[#new_letters + 2] = id, value
  lib.count("dead", 1)
  lib.keep_letter(id, reason, value)
end

-- Remove a dead letter and return it, nil if it is missing.
function lib.take_letter(id)
  local value = lib.take_field(key("dead"), id)
  if not value then return nil end
  local letter = cmsgpack.unpack(value)
  lib.take_member(key("died"), lib.died_score(letter[1], letter[7]), id)
  return letter
end

-- Whether a dead letter is counted in `stats`, which begin anew with each crawl while the letters are kept.
function lib.died_in(letter, epoch)
  return letter[11] == epoch
end

-- Return the slot of a suspect, and where its payload begins; nil if the entry is not ours.
function lib.read_suspect(envelope) -- seldom
  local is_read, slot, rest = pcall(struct.unpack, ">I4c0", envelope, 10)
  if is_read then return slot, rest end
end

-- The same for a delayed request, after its rank.
function lib.read_delayed(envelope) -- seldom
  local is_read, rank, slot, rest = pcall(struct.unpack, ">dI4c0", envelope, 10)
  -- The rank of a foreign entry may be NaN.
  if is_read and rank == rank then return rank, slot, rest end
end

-- Make a dead letter of an entry that another program has written, since each call that reads it would fail. No counter
-- includes it.
function lib.dead_letter_foreign(entry) -- seldom
  local id = string.sub(entry .. string.rep("\0", 8), 1, 8)
  local detail = "an entry of " .. #entry .. " bytes that another program has written"
  lib.dead_letter(id, {attempts = 0, rank = 0, slot = "", worker = "", payload = entry}, "decode", detail)
  lib.count("accepted", 1)
end
