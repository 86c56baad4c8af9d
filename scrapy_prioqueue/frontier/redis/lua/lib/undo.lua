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

-- Remove a field from a hash; return its value, false if there is none.
function lib.take_field(noun, field) -- seldom
  local value = redis.call("HGET", key(noun), field)
  if value then
    lib.note_undo("HSET", key(noun), field, value)
    redis.call("HDEL", key(noun), field)
  end
  return value
end
