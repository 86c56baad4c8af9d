-- Give pending and delayed requests another rank.
-- guarantee: a request that is gone or leased by now is skipped; a delayed one stays delayed.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] requests, each: id, attempts, rank, slot, payload, new rank, new payload
-- reply: moved
-- cost: O(log n) per request
-- flags: allow-oom

local moved = 0
lib.try_writes(false)
local function move(i)
  local id, attempts, rank, slot, payload = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local due_ms = redis.call("ZSCORE", key("delayed"), lib.delayed_envelope(id, attempts, rank, slot, payload))
  local found = lib.take_pending(id, attempts, rank, slot, payload)
  if found then
    moved = moved + 1
    if due_ms then
      lib.put_delayed(id, found, ARGV[i + 5], slot, ARGV[i + 6], due_ms)
    else
      lib.put(id, found, ARGV[i + 5], slot, ARGV[i + 6])
    end
  end
end

lib.all_or_nothing(function()
  for i = 2, #ARGV, 7 do move(i) end
  lib.write_changes()
end)
if moved > 0 then lib.wake_hungry() end
return moved
