-- Switching limits of slots on and off, and changing them.

function lib.add_switches(limits) -- policies
  -- Switch limits on: current leases must be counted, since nobody has counted them so far.
  function limits.enable()
    if lib.read_policies().has_limits then return end
    redis.call("HSET", KEYS[1], "has_limits", "1")
    redis.call("UNLINK", key("running"), key("paced"))
    policies = nil
    lib.begin_count("limits")
  end

  -- If only pauses that sites have asked for need limits, set when these end: some time after the last pause, since
  -- such a site may ask again. Called when the need for limits has changed.
  function limits.set_end()
    local LINGER_MS = 10000
    local has = lib.read_policies()
    if not has.has_limits then return end
    local is_needed = has.has_delays or has.throttle or has.awaits_delays or redis.call("HLEN", key("limits")) > 0
    local last_ms = tonumber(redis.call("ZRANGE", key("closed"), -1, -1, "WITHSCORES")[2] or 0)
    has.limits_end_ms = not is_needed and math.ceil(math.max(now_ms, last_ms + LINGER_MS)) or nil
    redis.call("HSET", KEYS[1], "has_limits", is_needed and "1" or string.format("%.0f", has.limits_end_ms))
  end

  -- Switch limits off if no slot waits any more. Their remaining state is dropped when they are switched on again.
  function limits.finish()
    if policies.counting or redis.call("ZCARD", key("waiting")) > 0 then return end
    lib.note_undo("HSET", KEYS[1], "has_limits", string.format("%.0f", policies.limits_end_ms))
    redis.call("HDEL", KEYS[1], "has_limits")
    redis.pcall("UNLINK", key("running"), key("paced"), key("closed"))
    policies.has_limits, policies.limits_end_ms = false, nil
    limits.forget()
  end

  -- After a change of limits, let the next exchanges check all waiting slots, and those that were served lately; see
  -- `look_again`.
  function limits.refresh()
    limits.forget_clocks()
    whole = {}
    redis.call("HSET", KEYS[1], "reopen", "waiting -inf ")
  end

  -- Writes without effect; on the way they drop start times that don't matter any more.
  function limits.try()
    lib.drop_past("paced", "(" .. now_ms - CATCH_UP_MS)
    lib.try_each({"waiting", "paced", "ready"}, {"running", "delays", "limits", "turns"})
    redis.call("ZMSCORE", key("paced"), NOBODY)
    redis.call("ZSCORE", key("waiting"), NOBODY)
    redis.call("ZRANK", key("waiting"), NOBODY)
    redis.call("HMGET", key("running"), NOBODY)
    redis.call("HLEN", key("limits"))
  end
end
