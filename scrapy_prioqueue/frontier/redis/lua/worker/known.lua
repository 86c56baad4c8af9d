-- Return which fingerprints were seen.
-- guarantee: nothing changes.
-- KEYS[1] {prioqueue:<name>}:state hash
-- ARGV[1] now_ms
-- ARGV[2..] fingerprints, as in `lib/seen.lua`, or empty
-- reply: {code, known}: indexes of those that would be duplicates in a push, counted from 0
--   code: 0 fine
-- cost: O(levels) per fingerprint
-- flags: allow-oom

local known = {}
lib.begin_storing("", 1)
for i = 2, #ARGV do
  if ARGV[i] ~= "" and lib.is_seen(ARGV[i]) then known[#known + 1] = i - 2 end
end
return {OK, known}
