-- The undo log of a call, so that an error in the middle changes nothing.
-- Redis doesn't undo a script that fails. So each effect logs what undoes it: a command, or the name of a library
-- function, which is only built if it is needed. The log runs in reverse order. An effect that may be undone although
-- it didn't happen is logged before it; one that may not, such as a change of a counter, after it.

local undo_log, undo_end = {}, {}

function lib.note_undo(...)
  undo_log[#undo_log + 1] = {...}
end

-- Run the function of that name once after all other undoing, with a list of the `what` of each call.
function lib.note_undo_end(name, what)
  undo_end.name = name
  undo_end[#undo_end + 1] = what
end

-- Make the effects so far permanent, whatever fails from now on.
function lib.keep_effects()
  undo_log, undo_end = {}, {}
end

local function take_back(name, ...)
  local own = string.match(name, "^lib%.(.*)")
  if own then pcall(lib[own], ...) else redis.pcall(name, ...) end
end

function lib.undo() -- seldom
  local log, last = undo_log, undo_end
  lib.keep_effects()
  for i = #log, 1, -1 do take_back(unpack(log[i])) end
  if last.name then take_back(last.name, last) end
end

-- Run a function with effects; if it fails, undo them and raise the error.
function lib.all_or_nothing(effects)
  local is_done, reply = pcall(effects)
  if is_done then return reply end
  lib.undo()
  return error(reply, 0)
end

-- Effects that log their inverse, on the key of that name.

-- Write a field of a hash that had the value `before`, false or nil for none.
function lib.replace_field(name, field, before, value)
  lib.note_undo(before and "HSET" or "HDEL", name, field, before or nil)
  redis.call("HSET", name, field, value)
end

-- Remove a field from a hash; return its value, false if there is none.
function lib.take_field(name, field) -- seldom
  local value = redis.call("HGET", name, field)
  if value then
    lib.note_undo("HSET", name, field, value)
    redis.call("HDEL", name, field)
  end
  return value
end

-- Add to a number in a hash; return the sum.
function lib.add_to_field(name, field, change)
  local sum = redis.call("HINCRBY", name, field, change)
  lib.note_undo("HINCRBY", name, field, -change)
  return sum
end

-- Add a new member to a sorted set.
function lib.add_member(name, score, member) -- seldom
  lib.note_undo("ZREM", name, member)
  redis.call("ZADD", name, score, member)
end

-- Remove a member, which has that score, from a sorted set.
function lib.take_member(name, score, member) -- seldom
  lib.note_undo("ZADD", name, score, member)
  redis.call("ZREM", name, member)
end
