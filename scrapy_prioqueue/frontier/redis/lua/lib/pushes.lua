-- New requests: marking them as seen, giving them ids, and storing them.

local MIDDLE = 2 ^ 52

-- Number of arguments of a push: rank, slot, start, payload, fingerprint, mark, delay; see `push_arguments` in wire.py.
local PUSH_LENGTH = 7

-- Take ids for a number of new requests at once; ids of duplicates are skipped.
function lib.begin_storing(order, most)
  stored.most_ids, stored.ids_left, stored.order = math.max(1, most), 0, order
  lib.read_seen()
  if string.sub(stored.shape_text, 1, 6) == "bloom " then lib.begin_bloom() end
  if lib.has_times() then lib.begin_timed() end
end

-- Whether these operations of a batch are only duplicates, so that none needs memory.
local function are_seen(stores)
  for i = 1, #stores, 2 do
    local at = stores[i]
    local fingerprint = ARGV[at] == "P" and ARGV[at + 6] == "" and ARGV[at + 5] or ""
    if fingerprint == "" or not lib.is_seen(fingerprint) then return false end
  end
  return true
end

-- Report the worker as alive, which needs memory; return false if the server has none left, and these need none.
function lib.has_room(worker, stores)
  local reply = redis.pcall("ZADD", key("workers"), "XX", 0, NOBODY)
  local is_full = type(reply) == "table" and string.find(reply.err, "OOM", 1, true)
  if is_full and are_seen(stores) then return false end
  lib.report_alive(worker)
  return true
end

-- The lower id is served first among equals: newest first ("lifo") counts down, and start requests come last.
-- `at`: index of the push's first argument. Its start is "1" for a start request, "2" for one that goes before earlier
-- ones, "0" for any other request.
function lib.new_id(at)
  local most, start = stored.most_ids, ARGV[at + 2]
  if stored.ids_left == 0 then
    stored.sequence, stored.ids_left = redis.call("HINCRBY", KEYS[1], "sequence", most) - most, most
  end
  stored.sequence, stored.ids_left = stored.sequence + 1, stored.ids_left - 1
  local sequence = stored.sequence
  if start == "1" then return lib.packed(MIDDLE + sequence) end
  if start == "2" then return lib.packed(2 * MIDDLE - sequence) end
  if stored.order == "lifo" then return lib.packed(MIDDLE - sequence) end
  return lib.packed(sequence)
end

-- When a request may be served, from `<delay_ms>,<not_before_ms>`; nil for at once.
function lib.due_of(delay)
  if delay == "" then return nil end
  local delay_ms, not_before_ms = string.match(delay, "^(%d+),(%d+)$")
  local due_ms = math.max(now_ms + tonumber(delay_ms), tonumber(not_before_ms) + ahead_ms)
  return due_ms > now_ms and due_ms or nil
end

-- Mark the push whose arguments begin at `at` as seen. Return nil if it is new, "mark" if its start mark was pushed
-- before, and "fingerprint" if it is a duplicate.
function lib.known_by(at)
  local fingerprint, mark = ARGV[at + 4], ARGV[at + 5]
  if mark ~= "" then
    if redis.call("SADD", key("marks"), mark) == 0 then return "mark" end
    lib.note_undo("SREM", key("marks"), mark)
  end
  if fingerprint ~= "" and not lib.mark_seen(fingerprint) then return "fingerprint" end
  return nil
end

-- Store the push whose arguments begin at `at`.
function lib.store(at)
  local rank, slot, payload = ARGV[at], ARGV[at + 1], ARGV[at + 3]
  local id, due_ms = lib.new_id(at), lib.due_of(ARGV[at + 6])
  stored.accepted = stored.accepted + 1
  if due_ms then
    lib.put_delayed(id, 0, rank, slot, payload, due_ms)
    stored.delayed = stored.delayed + 1
  else
    lib.queue_up(slot, rank, id .. "\0" .. payload)
  end
end

-- Reopen an ended crawl after a push, from a spider's idle handler or another program.
function lib.reopen(crawl_id) -- seldom
  lib.note_undo("HSET", KEYS[1], "phase", "ended", "ended_ms", now_ms)
  redis.call("HSET", KEYS[1], "phase", "open")
  redis.call("HDEL", KEYS[1], "ended_ms", "is_clear")
  redis.call("ZREM", key("ended"), crawl_id)
end

-- Nothing is stored in a crawl that is over and is being, or has been, cleared.
function lib.takes_requests(phase, cleaner)
  return phase == "open" or (phase == "ended" and not cleaner)
end

-- Write the changes, and wake workers that wait for requests if there are new ones.
function lib.finish_changes(phase, crawl_id, added)
  lib.write_changes()
  if added == 0 then return end
  if phase == "ended" then lib.reopen(crawl_id) end
  lib.wake_hungry()
end
