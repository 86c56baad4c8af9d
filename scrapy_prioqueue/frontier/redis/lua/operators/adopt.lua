-- Begin an import into a frontier that doesn't exist yet; workers wait until `complete`.
-- guarantee: nobody joins a frontier whose import was interrupted; another import may replace that one after it was not
--   heard of for a while.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] client: id of the program until the import is complete
-- ARGV[3] epoch of the exported frontier
-- ARGV[4] suspect_attempts
-- ARGV[5] fields: JSON object of the fields of the state that determine where requests are stored
-- reply: {code, …}
--   0 go on: {0, epoch, is_half 0 or 1: first clear the data of an interrupted import}
--   18 not empty: {18, phase}
-- cost: O(1)
-- flags:

local OCCUPIED = 18

local state = lib.named_fields({"phase", "epoch", "scope", "is_clear", "cleaning_ms"})
local is_half = state.phase == "importing" and lib.is_stale(state.cleaning_ms)
local is_cleared = state.phase == "ended" and state.scope == "all" and state.is_clear
if state.phase and not (is_half or is_cleared) then return {OCCUPIED, state.phase} end
-- Epochs are continued, so that members of an earlier crawl can't take part in this one.
local epoch = math.max(tonumber(ARGV[3]), tonumber(state.epoch or 0) + 1)
local fields = {"phase", "importing", "scope", "all", "cleaner", ARGV[2], "cleaning_ms", now_ms, "epoch", epoch,
  "suspect_attempts", ARGV[4]}
for field, value in pairs(cjson.decode(ARGV[5])) do fields[#fields + 1], fields[#fields + 2] = field, value end
lib.forget_crawl()
redis.call("HDEL", KEYS[1], "layout", "cleared")
redis.call("HSET", KEYS[1], unpack(fields))
return {OK, tostring(epoch), is_half and 1 or 0}
