-- Store the record of a run, and a sample for the history of the crawl if one is due.
-- guarantee: nothing is stored on a server that has lost the crawl; only runs of the newest crawl count in its history.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] epoch
-- ARGV[3] run: its id
-- ARGV[4] record: JSON object
-- ARGV[5] stats: JSON object of the numbers in Scrapy's stats
-- ARGV[6] is_closing 0 or 1: this is the last record of the run
-- ARGV[7] lease_ttl_ms
-- reply: {code, due_ms}: milliseconds until the next sample is due
--   code: 0 fine; 2 the server has lost the crawl
-- cost: O(size of the records); with a sample O(slots looked at * tiers), 200 or a little more
-- flags: allow-oom

local MOST_RUNS, MOST_DROPPED = 1000, 100

local run = ARGV[3]

local epoch = redis.call("HGET", KEYS[1], "epoch")
if not epoch or tonumber(epoch) < tonumber(ARGV[2]) then return {UNKNOWN_SESSION} end

local before = redis.call("HGET", key("runs"), run)
before = before and cjson.decode(before) or {}
-- A report that was overtaken by the last one.
if before.reason and ARGV[6] == "0" then return {OK, 0} end

-- The first write needs no memory.
redis.call("ZREM", key("ran"), run)
redis.call("HSET", key("runs"), run, ARGV[4])
redis.call("ZADD", key("ran"), now_ms, run)

local surplus = math.min(MOST_DROPPED, redis.call("ZCARD", key("ran")) - MOST_RUNS)
if surplus > 0 then lib.drop_runs(redis.call("ZRANGE", key("ran"), 0, surplus - 1), epoch) end

if epoch ~= ARGV[2] then return {OK, 0} end
redis.call("HSET", key("numbers"), run, ARGV[5])
local sums = lib.add_to_sums(before, cjson.decode(ARGV[4]))
return {OK, lib.keep_history(sums, tonumber(ARGV[7]), ARGV[6] == "1")}
