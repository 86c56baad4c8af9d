"""Print the Redis server binaries that the tests can be run against, one path a line; nothing else lives here."""

from __future__ import annotations

import sys

from redis_server import available_redis_servers

servers = available_redis_servers()
print(*servers, sep="\n")
sys.exit(0 if servers else "no Redis server found")
