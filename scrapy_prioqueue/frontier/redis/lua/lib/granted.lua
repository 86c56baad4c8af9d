-- Which leases each worker has, so that it finds them among those of all others.

-- The entry of a worker is the ids, one behind the other, of all its leases, and of some that have ended: these are taken
-- out when the text has grown by so many bytes, so that the end of a lease costs nothing.
local GRANTED_BYTES = 4096

function lib.still_leased(text) -- seldom
  local MOST, kept = 4000, {}
  local ids = {}
  for at = 1, #text, 8 do ids[#ids + 1] = string.sub(text, at, at + 7) end
  for first = 1, #ids, MOST do
    local expiries = redis.call("ZMSCORE", key("leases"), unpack(ids, first, math.min(first + MOST - 1, #ids)))
    for i, expiry in ipairs(expiries) do
      if expiry then kept[#kept + 1] = ids[first + i - 1] end
    end
  end
  return table.concat(kept)
end

-- Note that a worker, whose entry was that before, is handed these.
function lib.note_granted(worker, before, ids)
  lib.note_undo(before and "HSET" or "HDEL", key("granted"), worker, before or nil)
  local known = before or ""
  if math.floor(#known / GRANTED_BYTES) < math.floor((#known + #ids) / GRANTED_BYTES) then
    known = lib.still_leased(known)
  end
  redis.call("HSET", key("granted"), worker, known .. ids)
end

-- A worker is gone. Leases that it left behind are found when it comes back.
function lib.forget_granted(worker) -- seldom
  local text, kept = redis.call("HGET", key("granted"), worker) or "", {}
  for at = 1, #text, 8 do
    local id = string.sub(text, at, at + 7)
    local lease = lib.read_lease(id)
    if lease and lease.worker == worker then kept[#kept + 1] = id end
  end
  lib.write_field("granted", worker, kept[1] and table.concat(kept))
end
