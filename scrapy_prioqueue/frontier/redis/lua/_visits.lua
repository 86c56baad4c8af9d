-- What scripts of programs that are no workers share; put behind `_pushes.lua` at load.

-- Nothing is stored in a crawl that is over and that someone clears, or has cleared.
function lib.takes_requests(phase, cleaner)
  return phase == "open" or (phase == "ended" and not cleaner)
end

-- Write what has changed, and wake the workers that wait for requests if there are some now.
function lib.finish_changes(phase, crawl_id, added)
  lib.write_changes()
  if added == 0 then return end
  if phase == "ended" then lib.reopen(crawl_id) end
  lib.wake_hungry()
end

-- Take a dead letter out; returns it, nil if it isn't there.
function lib.take_letter(id)
  local value = redis.call("HGET", key("dead"), id)
  if not value then return nil end
  local letter = cmsgpack.unpack(value)
  lib.note_undo("ZADD", key("died"), letter[7], id)
  lib.note_undo("HSET", key("dead"), id, value)
  redis.call("ZREM", key("died"), id)
  redis.call("HDEL", key("dead"), id)
  return letter
end

-- Whether a dead letter is counted in `stats`, which begin anew with each crawl while the letters stay.
function lib.died_in(letter, epoch, created_ms)
  if letter[11] then return letter[11] == epoch end
  return letter[7] >= tonumber(created_ms)
end
