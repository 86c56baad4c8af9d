"""Print the Redis servers of this machine, but for the one that tests use by default, one path a line; no more."""

from __future__ import annotations

from redis_server import available_redis_servers, find_redis_server

default = find_redis_server().resolve()
print(*(server for server in available_redis_servers() if server.resolve() != default), sep="\n")
