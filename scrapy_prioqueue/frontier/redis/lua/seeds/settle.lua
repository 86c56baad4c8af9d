-- Drop entries that a worker has taken: what became of them is stored in the frontier.
-- guarantee: runs on a full server, too; dropping them again changes nothing.
-- KEYS[1] the key of seeds, which is not touched
-- KEYS[2] hash of what the worker has taken: token, entry
-- KEYS[3] set of the workers that have taken something
-- ARGV[1] worker
-- ARGV[2..] tokens
-- reply: how many were there
-- cost: O(tokens)

local dropped = 0
for i = 2, #ARGV do dropped = dropped + redis.call("HDEL", KEYS[2], ARGV[i]) end
if redis.call("EXISTS", KEYS[2]) == 0 then redis.call("SREM", KEYS[3], ARGV[1]) end
return dropped
