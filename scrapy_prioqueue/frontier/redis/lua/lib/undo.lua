-- The undo log of a call, so that an error in the middle changes nothing.
-- The server undoes nothing of a script that fails. So whatever has an effect notes what takes it back: a command, or a
-- function of the library by its name, so that it is only built when it is needed. They run in reverse order. What may
-- be taken back before it was done is noted before the effect; what may not, such as a change of a counter, behind it.

local undo_log, undo_end = {}, {}

function lib.note_undo(...)
  undo_log[#undo_log + 1] = {...}
end

-- The function of that name runs when all else is taken back, once, with a list of these.
function lib.note_undo_end(name, what)
  undo_end.name = name
  undo_end[#undo_end + 1] = what
end

-- What was done so far stays, whatever fails from now on.
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

-- Run what has effects; where it fails, take back what it has done, and fail.
function lib.all_or_nothing(effects)
  local is_done, reply = pcall(effects)
  if is_done then return reply end
  lib.undo()
  return error(reply, 0)
end

-- Take a field out of a hash; returns its value, false if there is none.
function lib.take_field(noun, field) -- seldom
  local value = redis.call("HGET", key(noun), field)
  if value then
    lib.note_undo("HSET", key(noun), field, value)
    redis.call("HDEL", key(noun), field)
  end
  return value
end
