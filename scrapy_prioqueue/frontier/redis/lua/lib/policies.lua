-- Which policies this frontier has, so that unused ones cost nothing.
-- The functions of a policy are built at first use, by `with_…`, since most calls need none.

local policies

-- Return the values of fields of the state; the policies are read along with them.
function lib.read_state(...)
  local found = redis.call("HMGET", KEYS[1], "has_limits", "has_budgets", "lanes", "has_delays", "throttle",
    "awaits_delays", "counting", ...)
  policies = {has_limits = found[1] ~= false, has_budgets = found[2] == "1", lanes = tonumber(found[3] or 0)}
  policies.limits_end_ms = found[1] and found[1] ~= "1" and tonumber(found[1]) or nil
  policies.has_delays, policies.throttle = found[4] == "1", found[5] and cjson.decode(found[5])
  policies.awaits_delays, policies.counting = found[6] == "1", found[7] and cjson.decode(found[7]) or nil
  return unpack(found, 8)
end

function lib.read_policies()
  if not policies then lib.read_state() end
  return policies
end

function lib.has_policies()
  local has = lib.read_policies()
  return has.has_limits or has.has_budgets or has.lanes > 0
end

-- By noun: all entries of a short hash, false for a long one.
local whole, decoded = {}, {}

local function read_whole(noun)
  if whole[noun] ~= nil then return end
  local is_short = redis.call("HLEN", key(noun)) <= 64
  whole[noun] = is_short and {} or false
  local flat = is_short and redis.call("HGETALL", key(noun)) or {}
  for i = 1, #flat, 2 do
    whole[noun][flat[i]] = flat[i + 1]
    -- The key is a number, since names are texts.
    if string.find(flat[i], "^!?%*%.") then whole[noun][1] = true end
  end
end

-- Return whether an entry may apply to all slots below a domain.
function lib.has_suffixes(noun) -- policies
  read_whole(noun)
  return not whole[noun] or whole[noun][1] == true
end

-- Return the entries of a hash with these names, in their order. A short hash is read once as a whole.
function lib.entries_of(noun, names) -- policies
  read_whole(noun)
  if not whole[noun] then return redis.call("HMGET", key(noun), unpack(names)) end
  local found = {}
  for _, name in ipairs(names) do found[#found + 1] = whole[noun][name] end
  return found
end

-- Return for each field the first value that is set; entries are JSON objects, or false.
function lib.merged(entries) -- policies
  local found = {}
  for _, text in ipairs(entries) do
    if text then
      local entry = decoded[text] or cjson.decode(text)
      decoded[text] = entry
      for field, value in pairs(entry) do
        if found[field] == nil then found[field] = value end
      end
    end
  end
  return found
end
