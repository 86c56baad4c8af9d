-- What requests may cost by budget key; put behind `_lanes.lua` at load.

-- Only requests with a label in front of their payload have budgets: 0x02, length (2 bytes), a MessagePack array of
-- whether the request is rendered and its keys.
local LABELLED = 2
local CAPS = {"pages", "renders", "bytes", "seconds"}

local function label_of(payload)
  if not read_policies().has_budgets or string.byte(payload) ~= LABELLED then return nil end
  local fields = cmsgpack.unpack((struct.unpack(">I2c0", payload, 2)))
  return {is_rendered = fields[1], keys = {unpack(fields, 2)}}
end

-- By key: what was used, and the caps.
local uses = {}

local function use_of(name)
  if not uses[name] then
    local used = redis.call("HMGET", key("used"),
      "pages:" .. name, "renders:" .. name, "bytes:" .. name, "time_ms:" .. name)
    local caps = merged(redis.call("HMGET", key("budgets"), "!" .. name, name, "!*", "*"), CAPS)
    uses[name] = {
      pages = tonumber(used[1] or 0), renders = tonumber(used[2] or 0), bytes = tonumber(used[3] or 0),
      seconds = tonumber(used[4] or 0) / 1000, caps = caps, changes = {}}
  end
  return uses[name]
end

-- What of a budget a request doesn't fit into, nil if it does.
local function exceeded(use, is_rendered)
  local caps = use.caps
  if caps.pages and use.pages >= caps.pages then return "pages" end
  if caps.renders and is_rendered and use.renders >= caps.renders then return "renders" end
  if caps.bytes and use.bytes >= caps.bytes then return "bytes" end
  if caps.seconds and use.seconds >= caps.seconds then return "seconds" end
  return nil
end

-- The key of the first budget that a request doesn't fit into, and the detail of its dead letter; nil for none.
local function over_budget(label)
  for _, name in ipairs(label.keys) do
    local use = use_of(name)
    local what = exceeded(use, label.is_rendered)
    if what then
      return name, string.format("budget %s: %s %.12g of %.12g", name, what, use[what], use.caps[what])
    end
  end
  return nil
end

local function change_use(name, what, change)
  local use = use_of(name)
  use.changes[what] = (use.changes[what] or 0) + change
  if use[what] then use[what] = use[what] + change end
end

-- Hold (1) or give back (-1) what a request needs while it is leased.
local function hold(payload, change)
  local label = label_of(payload)
  if not label then return end
  for _, name in ipairs(label.keys) do
    change_use(name, "pages", change)
    if label.is_rendered then change_use(name, "renders", change) end
  end
end

-- Add what a request has cost, `<bytes>,<milliseconds>`.
local function settle_budgets(payload, spent)
  local label = spent ~= "" and label_of(payload)
  if not label then return end
  local bytes, time_ms = string.match(spent, "^(%d+),(%d+)$")
  for _, name in ipairs(label.keys) do
    change_use(name, "bytes", tonumber(bytes))
    change_use(name, "time_ms", tonumber(time_ms))
  end
end

local function write_uses()
  for name, use in pairs(uses) do
    for what, change in pairs(use.changes) do
      if change ~= 0 then redis.call("HINCRBY", key("used"), what .. ":" .. name, change) end
    end
    use.changes = {}
  end
end
