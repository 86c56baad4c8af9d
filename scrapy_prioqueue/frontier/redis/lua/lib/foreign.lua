-- Entries that another program has written into our keys.

-- Return the slot of a suspect, and where its payload begins; nil if the entry is not ours.
function lib.read_suspect(envelope) -- seldom
  local is_read, slot, rest = pcall(struct.unpack, ">I4c0", envelope, 10)
  if is_read then return slot, rest end
end

-- The same for a delayed request, after its rank.
function lib.read_delayed(envelope) -- seldom
  local is_read, rank, slot, rest = pcall(struct.unpack, ">dI4c0", envelope, 10)
  -- The rank of a foreign entry may be NaN.
  if is_read and rank == rank then return rank, slot, rest end
end

-- Make a dead letter of an entry that another program has written, since each call that reads it would fail. No counter
-- includes it.
function lib.bury_foreign(entry) -- seldom
  local id = string.sub(entry .. string.rep("\0", 8), 1, 8)
  local detail = "an entry of " .. #entry .. " bytes that another program has written"
  lib.bury(id, {attempts = 0, rank = 0, slot = "", worker = "", payload = entry}, "decode", detail)
  lib.count("accepted", 1)
end
