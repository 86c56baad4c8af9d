-- Choosing the tier of the next request.

-- Stride scheduling: each tier has a pass, which grows by 1 / weight with each request; the lowest pass is served next.
-- `v` is the pass that was served last; a tier that had no requests continues from there.
local weighted = {passes = {}, v = 0}

function lib.read_weights(weights)
  if not weights then return end
  weighted.weights = cjson.decode(weights)
  local found = redis.call("HGETALL", key("passes"))
  for i = 1, #found, 2 do weighted.passes[found[i]] = tonumber(found[i + 1]) end
  weighted.v = weighted.passes.v or 0
end

function lib.pass_of(lane) -- policies
  return math.max(weighted.passes[lane.field] or 0, weighted.v)
end

function lib.pay(lane) -- policies
  weighted.v = lib.pass_of(lane)
  weighted.passes[lane.field] = weighted.v + 1 / weighted.weights[lane.tier + 1]
  weighted.has_changed = true
end

function lib.write_passes()
  if not weighted.has_changed then return end
  weighted.passes.v = weighted.v
  local fields = {}
  for name, pass in pairs(weighted.passes) do
    fields[#fields + 1], fields[#fields + 2] = name, string.format("%.17g", pass)
  end
  redis.call("HSET", key("passes"), unpack(fields))
end

function lib.is_discovery(lane)
  return flood.is_on and flood.discovery[lane.tier] or false
end

-- The next slot to serve among the lanes of discovery, or the others, and when its request would start.
function lib.next_among(discovery) -- policies
  local best, sure, is_ready = {}, {}, false
  for _, lane in ipairs(lib.all_lanes()) do
    local pass = weighted.weights and lib.pass_of(lane) or 0
    local is_wanted = lib.is_discovery(lane) == discovery
    if is_wanted and (policies.has_limits or not best.entry or pass < best.pass) then
      local entry, start_ms = lib.first_of(lane)
      local found = {entry = entry, start_ms = start_ms, pass = pass}
      if entry and (not best.entry or pass < best.pass) then best = found end
      if entry and not lane.is_reserving and (not sure.entry or pass < sure.pass) then sure = found end
      is_ready = is_ready or lane.is_ready
    end
  end
  -- A place is reserved only if another request could take it at once.
  local found = (is_ready or not policies.has_limits) and best or sure
  return found.entry, found.start_ms
end

function lib.next_entry()
  local all = lanes
  if not all[2] then return lib.first_of(all[1]) end
  local entry, start_ms = lib.next_among(false)
  if entry or not flood.is_on or flood.allowed <= 0 then return entry, start_ms end
  return lib.next_among(true)
end
