-- The leases of each worker, so that they are found without reading those of others.

-- The entry of a worker is a text of the ids of all its leases, and of some that have ended. These are removed when the
-- text has grown by this many bytes, so that the end of a lease costs nothing.
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

-- Note new leases of a worker, whose entry was `before`.
function lib.note_granted(worker, before, ids)
  lib.note_undo(before and "HSET" or "HDEL", key("granted"), worker, before or nil)
  local known = before or ""
  if math.floor(#known / GRANTED_BYTES) < math.floor((#known + #ids) / GRANTED_BYTES) then
    known = lib.still_leased(known)
  end
  redis.call("HSET", key("granted"), worker, known .. ids)
end

-- Remove a worker. Leases that it has left are found when it comes back.
function lib.forget_granted(worker) -- seldom
  local text, kept = redis.call("HGET", key("granted"), worker) or "", {}
  for at = 1, #text, 8 do
    local id = string.sub(text, at, at + 7)
    local lease = lib.read_lease(id)
    if lease and lease.worker == worker then kept[#kept + 1] = id end
  end
  lib.write_field("granted", worker, kept[1] and table.concat(kept))
end
