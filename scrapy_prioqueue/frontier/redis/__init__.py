"""The frontier in Redis: the only folder that imports `redis`. Data stays in the Lua scripts' layout."""
