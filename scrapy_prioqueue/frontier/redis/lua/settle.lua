-- End an import: write the state and the counters, and let workers in.
-- guarantee: all or nothing.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] client: what the program is known by until it is done
-- ARGV[3] state: JSON object of fields
-- ARGV[4] stats: likewise
-- reply: whether it was done, as a number; not where the import has been cleared
-- cost: O(1)
-- flags:

if redis.call("HGET", KEYS[1], "cleaner") ~= ARGV[2] then return 0 end
for field, value in pairs(cjson.decode(ARGV[4])) do redis.call("HSET", key("stats"), field, value) end
redis.call("HDEL", KEYS[1], "cleaner", "cleaning_ms", "scope", "is_clear")
for field, value in pairs(cjson.decode(ARGV[3])) do redis.call("HSET", KEYS[1], field, value) end
return 1
