-- Move entries from a key of seeds to the hash of a worker.
-- guarantee: each entry is in one of the two at every moment, in both if it fails in the middle; a full server refuses
--   it before anything is moved.
-- KEYS[1] the key of seeds: list, sorted set or set
-- KEYS[2] hash of the entries that the worker has taken: token, entry
-- KEYS[3] set of the workers that have taken entries
-- ARGV[1] worker
-- ARGV[2] limit, above 0
-- ARGV[3] nonce of this process
-- ARGV[4] number of the first entry; the others count up
-- reply: {type of the key, entries}; a token is `<nonce>:<number>`
-- cost: O(limit * log n)

local source, taken, takers = KEYS[1], KEYS[2], KEYS[3]
local limit, number = tonumber(ARGV[2]), tonumber(ARGV[4])

local kind = redis.call("TYPE", source).ok
if kind ~= "list" and kind ~= "zset" and kind ~= "set" then return {kind, {}} end

-- An entry is stored after the data needed to put it back, and a space.
local entries, kept = {}, {}
local function keep(origin, entry)
  kept[#kept + 1] = ARGV[3] .. ":" .. string.format("%d", number + #entries)
  kept[#kept + 1] = origin .. " " .. entry
  entries[#entries + 1] = entry
end

if kind == "list" then
  for _, entry in ipairs(redis.call("LRANGE", source, 0, limit - 1)) do keep("list", entry) end
elseif kind == "zset" then
  local found = redis.call("ZREVRANGE", source, 0, limit - 1, "WITHSCORES")
  for i = 1, #found, 2 do keep(found[i + 1], found[i]) end
else
  for _, entry in ipairs(redis.call("SRANDMEMBER", source, limit)) do keep("set", entry) end
end

-- The first write needs memory; an entry leaves its key only after it was stored.
redis.call("SADD", takers, ARGV[1])
redis.call("HSET", taken, unpack(kept))
if kind == "list" then
  redis.call("LTRIM", source, #entries, -1)
else
  redis.call(kind == "zset" and "ZREM" or "SREM", source, unpack(entries))
end
return {kind, entries}
