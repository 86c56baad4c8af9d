-- Put entries that a worker has taken back into their key: at the head of a list, or under their scores.
-- guarantee: each entry is in one of the two at every moment; entries that are gone are skipped.
-- KEYS[1] the key of seeds: list, sorted set, set, or missing; not changed if it has another type
-- KEYS[2] hash of the entries that the worker has taken: token, entry
-- KEYS[3] set of the workers that have taken entries
-- ARGV[1] worker
-- ARGV[2..] tokens, the first one first
-- reply: number of entries put back
-- cost: O(tokens * log n)

local source, taken = KEYS[1], KEYS[2]
local kind = redis.call("TYPE", source).ok
local known = {list = true, zset = true, set = true, none = true}
local returned = 0

local function put(origin, entry)
  -- The key may have another type by now.
  local score = tonumber(origin)
  local into = kind
  if kind == "none" then into = score and "zset" or origin end
  if into == "list" then
    redis.call("LPUSH", source, entry)
  elseif into == "zset" then
    redis.call("ZADD", source, score and origin or 0, entry)
  else
    redis.call("SADD", source, entry)
  end
end

if known[kind] then
  for i = #ARGV, 2, -1 do
    local value = redis.call("HGET", taken, ARGV[i])
    if value then
      local origin, entry = string.match(value, "^(%S+) (.*)$")
      put(origin, entry)
      redis.call("HDEL", taken, ARGV[i])
      returned = returned + 1
    end
  end
end
if redis.call("EXISTS", taken) == 0 then redis.call("SREM", KEYS[3], ARGV[1]) end
return returned
