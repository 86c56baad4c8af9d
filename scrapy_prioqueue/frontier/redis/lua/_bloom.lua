-- A Bloom filter in strings; put behind `_seen.lua` at load.
-- Its shape is `bloom 0 <capacity> <error rate in 10^-9> <layers>`, each layer
--   b<hashes>:<chunks>:<bytes>:<capacity>    so many bits per fingerprint, all of them in one of so many strings of
--                                            that length, and how many fingerprints make it full
-- The next layer is begun when the last one is full, and the last of all never is.

-- From then on fingerprints are marked in it; called where the shape says so.
function lib.begin_bloom() -- seldom
  local bloom = {
    layers = {}, room = 0, is_last = false, next_at = string.match(stored.shape_text, "^bloom %d %d+ %d+ ()"),
    count = lib.count_seen()}

  local function read_layer()
    local layers = bloom.layers
    local hashes, chunks, bytes, capacity, next_at = string.match(
      stored.shape_text, "b(%d+):(%d+):(%d+):(%d+) ?()", bloom.next_at)
    bloom.next_at = next_at
    -- Numbers in a command are slow, so all that are always the same are texts.
    local command = {"BITFIELD", ""}
    for at = 3, 4 * hashes, 4 do
      command[at], command[at + 1], command[at + 2], command[at + 3] = "SET", "u1", "0", "1"
    end
    layers[#layers + 1] = {
      command = command, hashes = tonumber(hashes), chunks = tonumber(chunks), bytes = tonumber(bytes),
      begun_at = bloom.room, prefix = lib.seen_key("seen:" .. #layers .. ":")}
    bloom.room = bloom.room + capacity
    bloom.is_last = next_at > #stored.shape_text
  end

  -- The key of its string, and the command that sets its bits; see `Layer.positions` of `bloom.py`.
  local function command_for(layer, fingerprint)
    local a, b, c, d = string.byte(fingerprint, 1, 4)
    local hash = ((d * 256 + c) * 256 + b) * 256 + a
    local chunk = hash % layer.chunks
    local first, step, more = number_at(fingerprint, 5), number_at(fingerprint, 9), (hash - chunk) / layer.chunks
    local command, size = layer.command, layer.bytes * 8
    command[2] = layer.prefix .. chunk
    for at = 5, #command, 4 do
      command[at] = first % size
      first, step = first + step, step + more
    end
    return command
  end

  local function is_in_layer(layer, fingerprint)
    local command = command_for(layer, fingerprint)
    for at = 5, #command, 4 do
      local bit = redis.pcall("GETBIT", command[2], command[at])
      if refused(bit) or bit == 0 then return false end
    end
    return true
  end

  -- How many of the bits there were, nil if the server refuses to set them.
  local function set_bits(command)
    local found = redis.pcall(unpack(command))
    if found.err then
      stored.failure = found.err
      return nil
    end
    local count = 0
    for i = 1, #found do count = count + found[i] end
    return count
  end

  -- A string that grows gets more memory than it needs, one that is made at its full length doesn't. Once so many
  -- fingerprints are in a layer, it is certain enough that there is each of its strings.
  local function make_string(layer, name)
    if bloom.count - layer.begun_at > 20 * layer.chunks then return true end
    return redis.call("STRLEN", name) == layer.bytes
      or not refused(redis.pcall("SETRANGE", name, layer.bytes - 1, string.char(0)))
  end

  local function set_in_layer(layer, fingerprint)
    local command = command_for(layer, fingerprint)
    return make_string(layer, command[2]) and set_bits(command)
  end

  -- True if a push would find it seen.
  function lib.is_seen(fingerprint)
    for i = 1, #bloom.layers do
      if is_in_layer(bloom.layers[i], fingerprint) then return true end
    end
    return false
  end

  -- True if the fingerprint is new; then it is marked seen.
  function lib.mark_seen(fingerprint)
    if bloom.count >= bloom.room and not bloom.is_last then read_layer() end
    local layers = bloom.layers
    for i = 1, #layers - 1 do
      if is_in_layer(layers[i], fingerprint) or stored.failure then return false end
    end
    local layer = layers[#layers]
    local found = set_in_layer(layer, fingerprint)
    if not found or found == layer.hashes then return false end
    bloom.count, stored.newly_seen = bloom.count + 1, stored.newly_seen + 1
    return true
  end

  repeat read_layer() until bloom.count < bloom.room or bloom.is_last
end
