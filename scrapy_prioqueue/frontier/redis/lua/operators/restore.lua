-- Store a part of an imported frontier; counters are not changed.
-- guarantee: a program that is too slow, so that a worker has begun to clear its import, changes nothing any more.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2] client: id of the program until the import is complete
-- ARGV[3..] items, each a letter and its arguments:
--   Q id attempts rank slot payload            pending
--   D id attempts rank slot payload due_ms     delayed
--   X id score value                           dead letter; its score in `died`
--   L id workers                               workers lost while they held a request
--   H noun field value                         limits, budgets and their state, before all requests
--   P slot ms                                  when a slot's rate allows the next request, likewise
--   W slot ms                                  end of a pause that a site has asked for, likewise
--   T position turn                            turn of a slot in its lane, likewise
--   S bucket member                            member of a seen set; bucket as `<level>:<bucket>`
--   R bucket field value count                 field of a packed level, and its number of fingerprints
--   B bucket value                             string of a Bloom filter
--   F bucket cursor value                      piece of a RedisBloom filter, as returned by `BF.SCANDUMP`
--   N fingerprint                              hash of a fingerprint, stored in the level where it belongs
--   M mark                                     start mark
--   E crawl_id ended_ms                        ended crawl
-- reply: {code, pending, delayed, dead, seen, items}: numbers of new ones, and of all items
--   code: 0 fine; 1 the import is being cleared
-- cost: O(log n) per item
-- flags:

if redis.call("HGET", KEYS[1], "cleaner") ~= ARGV[2] then return {OTHER_CRAWL} end
redis.call("HSET", KEYS[1], "cleaning_ms", now_ms)

local pending, delayed, dead, seen = 0, 0, 0, 0

local function add(noun, score, member, id)
  return redis.call("ZADD", key(noun, id), score, member)
end

-- The first fingerprint of a level stores the number of levels, by which a clearing finds their keys.
local levels = tonumber(redis.call("HGET", KEYS[1], "seen_levels") or 0)
local function seen_bucket(bucket)
  local level = tonumber(string.match(bucket, "^%d+")) + 1
  if level > levels then
    levels = level
    redis.call("HSET", KEYS[1], "seen_levels", levels)
  end
  return key("seen", bucket)
end

local TAKE = {
  Q = function(at)
    local id, attempts, rank = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
    local slot, payload = ARGV[at + 4], ARGV[at + 5]
    if lib.is_suspect(attempts) then
      pending = pending + add("suspects", rank, lib.suspect_envelope(id, attempts, slot, payload))
    else
      pending = pending + add("queue", rank, id .. string.char(attempts) .. payload, slot)
      lib.touch(slot, rank)
    end
  end,
  D = function(at)
    local id, attempts, rank, slot, payload = unpack(ARGV, at + 1, at + 5)
    local envelope = lib.delayed_envelope(id, tonumber(attempts), rank, slot, payload)
    delayed = delayed + add("delayed", ARGV[at + 6], envelope)
  end,
  X = function(at)
    redis.call("HSET", key("dead"), ARGV[at + 1], ARGV[at + 3])
    dead = dead + add("died", ARGV[at + 2], ARGV[at + 1])
  end,
  L = function(at) redis.call("HSET", key("lost"), ARGV[at + 1], ARGV[at + 2]) end,
  H = function(at) redis.call("HSET", key(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]) end,
  P = function(at) add("paced", ARGV[at + 2], ARGV[at + 1]) end,
  W = function(at) add("closed", ARGV[at + 2], ARGV[at + 1]) end,
  T = function(at) redis.call("HSET", key("turns"), ARGV[at + 1], ARGV[at + 2]) end,
  S = function(at) seen = seen + redis.call("SADD", seen_bucket(ARGV[at + 1]), ARGV[at + 2]) end,
  R = function(at)
    local is_new = redis.call("HSET", seen_bucket(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3])
    seen = seen + is_new * ARGV[at + 4]
  end,
  B = function(at) redis.call("SET", seen_bucket(ARGV[at + 1]), ARGV[at + 2]) end,
  F = function(at)
    local name = seen_bucket(ARGV[at + 1])
    -- The first piece creates the filter, also if the call is repeated.
    if ARGV[at + 2] == "1" then redis.call("UNLINK", name) end
    redis.call("BF.LOADCHUNK", name, ARGV[at + 2], ARGV[at + 3])
  end,
  N = function(at)
    if not stored.order then lib.begin_storing("lifo", 1) end
    if lib.mark_seen(ARGV[at + 1]) then seen = seen + 1 end
  end,
  M = function(at) redis.call("SADD", key("marks"), ARGV[at + 1]) end,
  E = function(at) add("ended", ARGV[at + 2], ARGV[at + 1]) end,
}

local LENGTH = {Q = 6, D = 7, X = 4, L = 3, H = 4, P = 3, W = 3, T = 3, S = 3, R = 5, B = 3, F = 4, N = 2, M = 2, E = 3}
local at, index = 3, 0
while at <= #ARGV do
  TAKE[ARGV[at]](at)
  at, index = at + LENGTH[ARGV[at]], index + 1
end
lib.write_slots()
if stored.order then
  lib.write_seen()
  lib.move_seen_on()
end
return {OK, pending, delayed, dead, seen, index}
