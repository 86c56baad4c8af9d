-- End an import: write the state and the counters, and let workers join.
-- guarantee: all or nothing.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] client: id of the program until the import is complete
-- ARGV[3] state: JSON object of fields
-- ARGV[4] stats: likewise
-- reply: whether it was done, as a number; not if the import was cleared
-- cost: O(1)
-- flags:

if redis.call("HGET", KEYS[1], "cleaner") ~= ARGV[2] then return 0 end
local function flat(object)
  local fields = {}
  for field, value in pairs(cjson.decode(object)) do fields[#fields + 1], fields[#fields + 2] = field, value end
  return fields
end

local state, stats = flat(ARGV[3]), flat(ARGV[4])
lib.all_or_nothing(function()
  if stats[1] then redis.call("HSET", key("stats"), unpack(stats)) end
  if state[1] then
    lib.note_undo("HSET", KEYS[1], "phase", "importing")
    redis.call("HSET", KEYS[1], unpack(state))
  end
  redis.call("HDEL", KEYS[1], "cleaner", "cleaning_ms", "scope", "is_clear")
end)
return 1
