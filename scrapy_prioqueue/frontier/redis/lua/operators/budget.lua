-- Set or remove an operator's caps for a budget key, or for all keys.
-- guarantee: valid from the next exchange of any worker on; settings of workers that join later don't change it.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] budget key, or `*` for all
-- ARGV[3] entry: JSON object with any of pages, renders, bytes and seconds; the others keep their values; empty to
--   remove all
-- reply: {code, new entry, empty for none}
--   code: 0 fine; 1 no crawl is running
-- cost: O(1)
-- flags: allow-oom

if redis.call("HGET", KEYS[1], "phase") ~= "open" then return {OTHER_CRAWL} end

local field, entry = "!" .. ARGV[2], ""
-- The first write needs no memory.
lib.try_hash("budgets")
lib.note_orders({"budgets" .. field})
if ARGV[3] == "" then
  redis.call("HDEL", key("budgets"), field)
else
  entry = cjson.encode(lib.merged({ARGV[3], redis.call("HGET", key("budgets"), field)}))
  redis.call("HSET", key("budgets"), field, entry)
end
return {OK, entry}
