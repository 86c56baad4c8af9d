-- How limits of slots begin, change and end.

function lib.add_switches(limits) -- policies
  -- From now on slots have limits: what is out has to be counted, which nobody did before.
  function limits.enable()
    if lib.read_policies().has_limits then return end
    redis.call("HSET", KEYS[1], "has_limits", "1")
    redis.call("UNLINK", key("running"), key("paced"))
    policies = nil
    lib.begin_count("limits")
  end

  -- Limits that only pauses need, for which sites have asked, have an end. It comes some time after the last pause, as
  -- a site that asks for one may ask again. Called where what needs limits has changed.
  function limits.set_end()
    local LINGER_MS = 10000
    local has = lib.read_policies()
    if not has.has_limits then return end
    local is_needed = has.has_delays or has.throttle or has.awaits_delays or redis.call("HLEN", key("limits")) > 0
    local last_ms = tonumber(redis.call("ZRANGE", key("closed"), -1, -1, "WITHSCORES")[2] or 0)
    has.limits_end_ms = not is_needed and math.ceil(math.max(now_ms, last_ms + LINGER_MS)) or nil
    redis.call("HSET", KEYS[1], "has_limits", is_needed and "1" or string.format("%.0f", has.limits_end_ms))
  end

  -- End them if no slot waits any more. What is left of them is dropped when they begin again, too.
  function limits.finish()
    if policies.counting or redis.call("ZCARD", key("waiting")) > 0 then return end
    lib.note_undo("HSET", KEYS[1], "has_limits", string.format("%.0f", policies.limits_end_ms))
    redis.call("HDEL", KEYS[1], "has_limits")
    redis.pcall("UNLINK", key("running"), key("paced"), key("closed"))
    policies.has_limits, policies.limits_end_ms = false, nil
    limits.forget()
  end

  -- Limits have changed: the next exchanges look at each slot that waits, whatever it has waited for, and at those that
  -- were served lately; see `look_again`.
  function limits.refresh()
    limits.forget_clocks()
    whole = {}
    redis.call("HSET", KEYS[1], "reopen", "waiting -inf ")
  end

  -- Writes without effect; they drop, on the way, the clocks that have no say any more.
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
