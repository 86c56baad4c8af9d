-- Applying the policy of a worker that joins.

-- Changes for the warning: field of the policy, name of an entry or "", and JSON of the old and the new value.
local MOST_CHANGES = 5
local changes = {}

local function note_change(field, name, old, new)
  if old ~= new and #changes < 4 * MOST_CHANGES then
    for _, text in ipairs({field, name, old or "", new or ""}) do changes[#changes + 1] = text end
  end
end

local function is_same(one, other)
  for name, value in pairs(one) do
    if other[name] ~= value then return false end
  end
  for name in pairs(other) do
    if one[name] == nil then return false end
  end
  return true
end

local function note_entries(noun, field, entries)
  local flat, known = redis.call("HGETALL", key(noun)), {}
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, 1) ~= "!" then known[flat[i]] = flat[i + 1] end
  end
  for name, text in pairs(known) do
    local entry = entries[name]
    if not entry or not is_same(cjson.decode(text), entry) then
      note_change(field, name, text, entry and cjson.encode(entry))
    end
  end
  for name, entry in pairs(entries) do
    if not known[name] then note_change(field, name, nil, cjson.encode(entry)) end
  end
end

-- Write entries of settings into `limits` or `budgets`; those of operators (`!`) are kept. If there are many, the old
-- ones are dropped as a whole in the background, and entries aren't compared.
local MOST_DROPPED = 1000

function lib.write_entries(noun, field, entries)
  local gone, written, ordered = {}, {}, {}
  for _, name in ipairs(redis.call("HKEYS", key(noun))) do
    local list = string.sub(name, 1, 1) == "!" and ordered or gone
    list[#list + 1] = name
  end
  for name, entry in pairs(entries) do written[#written + 1], written[#written + 2] = name, cjson.encode(entry) end
  if #gone + #written <= MOST_DROPPED then note_entries(noun, field, entries) end
  if #gone <= MOST_DROPPED then
    lib.call_with_all("HDEL", key(noun), gone)
  else
    for _, name in ipairs(ordered) do
      written[#written + 1], written[#written + 2] = name, redis.call("HGET", key(noun), name)
    end
    redis.call("UNLINK", key(noun))
  end
  lib.call_with_all("HSET", key(noun), written)
end

-- Waiting slots keep their turns if there are no more than this; otherwise they get new ones.
local MOST_WAITING = 500

-- A name for the slots to be moved to other lanes, after those of earlier changes; see `unsorted_key`.
local function next_unsorted()
  return lib.name_of_unsorted(redis.call("HINCRBY", KEYS[1], "unsorted", 1))
end

local function set_waiting_aside(lane)
  local waiting, positions, members = redis.call("ZRANGE", key("waiting"), 0, MOST_WAITING - 1), {}, {}
  if not waiting[1] then return end
  for i, slot in ipairs(waiting) do positions[i] = lane.prefix .. slot end
  for i, turn_text in ipairs(redis.call("HMGET", key("turns"), unpack(positions))) do
    if turn_text then members[#members + 1], members[#members + 2] = 0, turn_text .. waiting[i] end
  end
  if members[1] then lib.call_with_all("ZADD", next_unsorted(), members) end
end

-- After a change of lanes, `sort` and the following exchanges move slots to their new ones, with their turns. Here the
-- old lanes are only renamed, however many slots they have.
function lib.change_lanes(lanes_now)
  if lanes_now == lib.read_policies().lanes then return end
  local before = lib.all_lanes()
  for i = #before, 1, -1 do
    set_waiting_aside(before[i])
    if redis.call("EXISTS", before[i].ready) == 1 then redis.call("RENAME", before[i].ready, next_unsorted()) end
  end
  redis.call("UNLINK", key("turns"))
  lib.write_field("state", "lanes", lanes_now > 0 and lanes_now)
  policies, lanes = nil, nil
end

-- Which parts of a policy differ from those in force. A worker that joins again doesn't replace parts of those that
-- have joined after it. A digest is empty if the part has no values.
local function compare_parts(digests, parts, worker, joined_ms)
  local taken, owners, kept, is_whole = {}, {}, {}, true
  for part, digest in pairs(digests) do
    local known = parts[part]
    if known and known.digest ~= digest and known.ms > joined_ms then
      is_whole = false
    elseif not known or known.digest ~= digest then
      taken[part], owners[part] = true, known or {digest = "", by = "", ms = 0}
      parts[part] = {digest = digest, by = worker, ms = now_ms}
    end
  end
  for part, known in pairs(parts) do
    if not digests[part] and known.digest ~= "" then kept[#kept + 1], is_whole = part, false end
  end
  return taken, owners, kept, is_whole
end

-- Stored for the warning of all workers; see policy_parts.py.
local function note_policy_change(worker, owners, kept)
  for part, owner in pairs(owners) do
    if owner.digest == "" and not changes[1] then owners[part] = nil end
  end
  if not (next(owners) or kept[1]) then return end
  local at_ms = math.max(now_ms, tonumber(redis.call("HGET", KEYS[1], "policy_ms") or 0) + 1)
  local change = {by = worker, ms = at_ms, changes = changes, owners = owners, kept = kept}
  local text = cjson.encode(change)
  redis.call("HSET", KEYS[1], "policy_ms", string.format("%.0f", at_ms), "policy_change", text)
  return text
end

-- Apply the parts of a policy that a worker sets as it joins; the others are kept. Limits and budgets stay switched on
-- once they are. Returns the change as JSON for the warning, if there is one.
function lib.apply_policy(digest, text, worker, joined_ms)
  local known = lib.named_fields({"policy", "policy_parts", "weights", "discovery", "tiers"})
  if known.policy == digest then return end
  local policy, parts = cjson.decode(text), cjson.decode(known.policy_parts or "{}")
  local taken, owners, kept, is_whole = compare_parts(policy.digests, parts, worker, joined_ms)
  local function take(part, field, value)
    if not taken[part] then return end
    if type(value) == "number" then value = string.format("%.14g", value) end
    note_change(field, "", redis.call("HGET", KEYS[1], field) or nil, value)
    lib.write_field("state", field, value)
  end
  local function encoded(value) return value and cjson.encode(value) end
  if taken.slots then lib.write_entries("limits", "slots", policy.slots or {}) end
  if taken.budgets then lib.write_entries("budgets", "budgets", policy.budgets or {}) end
  local tiers, weights, discovery = #cjson.decode(known.tiers or "[]"), known.weights, known.discovery
  if taken.weights then weights = encoded(policy.weights) end
  -- Weights for other tiers, left by an earlier policy, are dropped.
  if weights and not taken.weights and #cjson.decode(weights) ~= tiers then
    weights, taken.weights, policy.weights = nil, true, nil
  end
  if taken.marks then discovery = encoded(policy.discovery) end
  lib.change_lanes((weights or discovery) and tiers or 0)
  if taken.marks then
    local has_marks = policy.high_water or policy.pending_limit or policy.memory_high_water
    lib.write_field("state", "has_marks", has_marks and "1")
    if not policy.memory_high_water then redis.call("HDEL", KEYS[1], "memory_high") end
    if not has_marks then
      redis.call("HDEL", KEYS[1], "is_flooded", "flood_mark", "flood_width", "flood_ms", "flood_held")
    end
  end
  for _, field in ipairs({"high_water", "low_water", "pending_limit", "memory_high_water"}) do
    take("marks", field, policy[field])
  end
  take("marks", "discovery", encoded(policy.discovery))
  take("throttle", "throttle", encoded(policy.throttle))
  take("weights", "weights", encoded(policy.weights))
  policies = nil
  if taken.budgets and policy.budgets then lib.enable_budgets() end
  take("crawl_delay", "awaits_delays", policy.awaits_delays and "1")
  policies = nil
  if taken.slots and next(policy.slots or {}) or taken.throttle and policy.throttle
    or taken.crawl_delay and policy.awaits_delays then
    lib.enable_limits()
  end
  if lib.read_policies().has_limits then lib.refresh_limits() end
  local change = known.policy_parts and note_policy_change(worker, owners, kept)
  -- Stored last, so that a policy isn't taken for applied if a part of it was refused.
  redis.call("HSET", KEYS[1], "policy_parts", cjson.encode(parts))
  lib.write_field("state", "policy", is_whole and digest)
  return change
end
