-- Move entries from a key of seeds to what a worker has taken.
-- guarantee: each entry is in one of the two at every moment; a full server refuses it before anything is moved.
-- KEYS[1] the key of seeds: list, sorted set or set
-- KEYS[2] hash of what the worker has taken: token, entry
-- KEYS[3] set of the workers that have taken something
-- ARGV[1] worker
-- ARGV[2] limit, above 0
-- ARGV[3] nonce of this process
-- ARGV[4] number of the first entry; further ones count up
-- reply: {type of the key, entries}; a token is `<nonce>:<number>`
-- cost: O(limit * log n)

local source, taken, takers = KEYS[1], KEYS[2], KEYS[3]
local limit, number = tonumber(ARGV[2]), tonumber(ARGV[4])

local kind = redis.call("TYPE", source).ok
if kind ~= "list" and kind ~= "zset" and kind ~= "set" then return {kind, {}} end

-- This write needs memory.
redis.call("SADD", takers, ARGV[1])

local entries = {}

-- What is needed to give it back stands in front of the entry, up to the first space.
local function keep(mark, entry)
  redis.call("HSET", taken, ARGV[3] .. ":" .. string.format("%d", number + #entries), mark .. " " .. entry)
  entries[#entries + 1] = entry
end

if kind == "list" then
  for _, entry in ipairs(redis.call("LPOP", source, limit)) do keep("list", entry) end
elseif kind == "zset" then
  local popped = redis.call("ZPOPMAX", source, limit)
  for i = 1, #popped, 2 do keep(popped[i + 1], popped[i]) end
else
  for _, entry in ipairs(redis.call("SPOP", source, limit)) do keep("set", entry) end
end
return {kind, entries}
