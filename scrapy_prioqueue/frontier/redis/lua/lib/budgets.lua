-- The cost of requests by budget key, and its caps.

-- Only requests with a label in front of their payload have budgets: 0x02, length (2 bytes), and a MessagePack array of
-- whether the request is rendered, and its keys.
local LABELLED = 2

local budgets

function lib.with_budgets() -- policies
  if budgets then return budgets end
  budgets = {}

  -- Labels by their text, since many requests have the same one; false if it is invalid.
  local labels = {}

  local function read_label(text)
    -- Other programs may have written bytes that only begin like a label.
    local is_fine, fields = pcall(cmsgpack.unpack, text)
    if not is_fine or type(fields) ~= "table" then return false end
    for i = 2, #fields do
      if type(fields[i]) ~= "string" then return false end
    end
    return {is_rendered = fields[1] and fields[1] ~= 0, keys = {unpack(fields, 2)}}
  end

  local function label_of(payload)
    local mark, high, low = string.byte(payload, 1, 3)
    if mark ~= LABELLED or not low then return nil end
    local length = high * 256 + low
    local text = string.sub(payload, 4, 3 + length)
    if #text < length then return nil end
    if labels[text] == nil then labels[text] = read_label(text) end
    return labels[text] or nil
  end

  -- By key: the use and the caps.
  local uses = {}

  local function use_of(name)
    if not uses[name] then
      local used = redis.call("HMGET", key("used"),
        "pages:" .. name, "renders:" .. name, "bytes:" .. name, "time_ms:" .. name)
      local caps = lib.merged(lib.entries_of("budgets", {"!" .. name, name, "!*", "*"}))
      uses[name] = {
        pages = tonumber(used[1] or 0), renders = tonumber(used[2] or 0), bytes = tonumber(used[3] or 0),
        seconds = tonumber(used[4] or 0) / 1000, caps = caps, changes = {}}
    end
    return uses[name]
  end

  -- The kind of cost that a request doesn't fit, nil if it fits.
  local function exceeded(use, is_rendered)
    local caps = use.caps
    if caps.pages and use.pages >= caps.pages then return "pages" end
    if caps.renders and is_rendered and use.renders >= caps.renders then return "renders" end
    if caps.bytes and use.bytes >= caps.bytes then return "bytes" end
    if caps.seconds and use.seconds >= caps.seconds then return "seconds" end
    return nil
  end

  local changes = {}

  local function change(name, what, by)
    local field = what .. ":" .. name
    changes[field] = (changes[field] or 0) + by
    local use = uses[name]
    if use and use[what] then use[what] = use[what] + by end
  end

  -- The key of the first budget that a request doesn't fit, and the kind of cost; nil for none.
  function budgets.excess(payload)
    local label = label_of(payload)
    for _, name in ipairs(label and label.keys or {}) do
      local what = exceeded(use_of(name), label.is_rendered)
      if what then return name, what end
    end
    return nil
  end

  -- The same, with the detail of the dead letter.
  function budgets.give_up(payload)
    local name, what = budgets.excess(payload)
    if not name then return nil end
    change(name, "over", 1)
    local use = use_of(name)
    return name, string.format("budget %s: %s %.12g of %.12g", name, what, use[what], use.caps[what])
  end

  -- Reserve (1) or return (-1) what a leased request needs.
  function budgets.hold(payload, by)
    local label = label_of(payload)
    for _, name in ipairs(label and label.keys or {}) do
      change(name, "pages", by)
      if label.is_rendered then change(name, "renders", by) end
    end
  end

  -- Add the cost of a request, `<bytes>,<milliseconds>`.
  function budgets.settle(payload, spent)
    local label, bytes, time_ms = label_of(payload), string.match(spent, "^(%d+),(%d+)$")
    for _, name in ipairs(label and label.keys or {}) do
      change(name, "bytes", tonumber(bytes))
      change(name, "time_ms", tonumber(time_ms))
    end
  end

  function budgets.write()
    for field, by in pairs(changes) do
      if by ~= 0 then lib.add_to_field(key("used"), field, by) end
    end
    changes, uses = {}, {}
  end

  return budgets
end

function lib.hold(payload, by)
  if lib.read_policies().has_budgets then lib.with_budgets().hold(payload, by) end
end

-- Switch budgets on: current leases must be counted, since nobody has counted them so far.
function lib.enable_budgets() -- seldom
  if lib.read_policies().has_budgets then return end
  redis.call("HSET", KEYS[1], "has_budgets", "1")
  policies = nil
  lib.begin_count("budgets")
end

-- Writes without effect.
function lib.try_budgets() -- policies
  for _, noun in ipairs({"used", "budgets"}) do
    redis.call("HDEL", key(noun), NOBODY)
    redis.call("HMGET", key(noun), NOBODY)
  end
end
