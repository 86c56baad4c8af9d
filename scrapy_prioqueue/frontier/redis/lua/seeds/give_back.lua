-- Put entries that a worker has taken back, to the head of a list and under their scores in a sorted set.
-- guarantee: each entry is in one of the two at every moment; what is not there any more is not put back.
-- KEYS[1] the key of seeds: list, sorted set, set, or nothing; left alone if it is anything else
-- KEYS[2] hash of what the worker has taken: token, entry
-- KEYS[3] set of the workers that have taken something
-- ARGV[1] worker
-- ARGV[2..] tokens, first one first
-- reply: how many were put back
-- cost: O(tokens * log n)

local source, taken = KEYS[1], KEYS[2]
local kind = redis.call("TYPE", source).ok
local known = {list = true, zset = true, set = true, none = true}
local returned = 0

local function put(mark, entry)
  -- The key may be of another type by now.
  local score = tonumber(mark)
  local into = kind
  if kind == "none" then into = score and "zset" or mark end
  if into == "list" then
    redis.call("LPUSH", source, entry)
  elseif into == "zset" then
    redis.call("ZADD", source, score and mark or 0, entry)
  else
    redis.call("SADD", source, entry)
  end
end

if known[kind] then
  for i = #ARGV, 2, -1 do
    local value = redis.call("HGET", taken, ARGV[i])
    if value then
      local mark, entry = string.match(value, "^(%S+) (.*)$")
      put(mark, entry)
      redis.call("HDEL", taken, ARGV[i])
      returned = returned + 1
    end
  end
end
if redis.call("EXISTS", taken) == 0 then redis.call("SREM", KEYS[3], ARGV[1]) end
return returned
