-- Make a frontier ready for requests from a program that isn't a worker: begin a crawl if none is running.
-- guarantee: nothing is stored in a frontier that is being cleared or imported; an interrupted clearing is taken over.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] client: id of the program while it clears
-- ARGV[3] has_cleared 0 or 1: this program has just cleared the scope of the last reply
-- ARGV[4] layout version
-- ARGV[5] tiers: JSON array of names
-- ARGV[6] order: lifo or fifo
-- ARGV[7] on_finish: restart or keep, empty for that of the last crawl
-- ARGV[8] crawl_id, empty for none
-- ARGV[9] suspect_attempts: number of losses that makes a request a suspect
-- ARGV[10] seen_shape: how to store fingerprints if there are none yet, see lib/seen.lua
-- ARGV[11] revisit_s: seconds after which a fingerprint is new again, empty if no times are stored
-- ARGV[12] seen_name: the frontier that stores the fingerprints, empty for that of the last crawl
-- reply: {code, …}
--   0 ready: {0, epoch, is_new, tiers}
--   10 clear first: {10, scope}, scope being all, restart or keep
--   11 wait, another client is clearing
--   15 other layout: {15, its layout}
--   19 an import was interrupted: {19, its client}
-- cost: O(1)
-- flags: allow-oom

local CLEAR, WAIT, LAYOUT, IMPORTING = 10, 11, 15, 19

local client, has_cleared, crawl_id = ARGV[2], ARGV[3] == "1", ARGV[8]
local state = lib.named_fields({
  "layout", "phase", "epoch", "tiers", "cleaner", "cleaning_ms", "scope", "is_clear", "on_finish"})
local on_finish = ARGV[7] ~= "" and ARGV[7] or state.on_finish or "restart"

-- The first write needs no memory, so that the reply can say what is wrong with the frontier of a full server.
redis.call("ZREM", key("hungry"), client)

local function begin()
  local epoch = lib.begin_crawl(crawl_id, {
    "layout", ARGV[4], "tiers", ARGV[5], "order", ARGV[6], "on_finish", on_finish, "suspect_attempts", ARGV[9],
    "is_unjoined", "1"})
  lib.write_field("state", "revisit_s", ARGV[11] ~= "" and ARGV[11])
  local seen_name = ARGV[12] ~= "" and ARGV[12] or redis.call("HGET", KEYS[1], "seen_name") or ""
  lib.write_field("state", "seen_name", not lib.is_own_name(seen_name) and seen_name)
  lib.keep_shape(seen_name, ARGV[10], true)
  if crawl_id ~= "" then redis.call("ZREM", key("ended"), crawl_id) end
  return {OK, tostring(epoch), 1, ARGV[5]}
end

local function clear(scope)
  redis.call("HSET", KEYS[1], "phase", "clearing", "scope", scope, "cleaner", client, "cleaning_ms", now_ms)
  return {CLEAR, scope}
end

if state.layout and state.layout ~= ARGV[4] then return {LAYOUT, state.layout} end
if state.phase == "importing" then
  if lib.is_stale(state.cleaning_ms) then return {IMPORTING, state.cleaner} end
  return {WAIT}
end
if state.phase == "clearing" then
  if state.cleaner ~= client and not lib.is_stale(state.cleaning_ms) then return {WAIT} end
  if has_cleared and state.cleaner == client then return begin() end
  return clear(state.scope)
end
if not state.phase then return begin() end
if state.phase == "ended" and state.cleaner then
  if state.is_clear == "1" and (state.scope ~= "keep" or on_finish == "keep") then return begin() end
  return clear(on_finish)
end
return {OK, state.epoch, 0, state.tiers}
