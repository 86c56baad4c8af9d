-- Drop entries that a worker has taken, since their requests or dead letters are stored in the frontier.
-- guarantee: it works on a full server; repeating it changes nothing.
-- KEYS[1] the key of seeds, which is not used
-- KEYS[2] hash of the entries that the worker has taken: token, entry
-- KEYS[3] set of the workers that have taken entries
-- ARGV[1] worker
-- ARGV[2..] tokens
-- reply: number of entries dropped
-- cost: O(tokens)

local dropped = 0
for i = 2, #ARGV do dropped = dropped + redis.call("HDEL", KEYS[2], ARGV[i]) end
if redis.call("EXISTS", KEYS[2]) == 0 then redis.call("SREM", KEYS[3], ARGV[1]) end
return dropped
