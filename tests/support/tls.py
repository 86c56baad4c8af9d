"""TLS for the Redis servers of tests, which want certificates of their clients."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from redis_server import available_redis_servers

from tests.support.certificates import LOOPBACK, Authority

NO_TLS = "no Redis server of this machine speaks TLS; Debian's does: apt-get install redis-server"


@cache
def tls_binary() -> Path | None:
    """Return a server of this machine that was built with TLS; none that comes from PyPI is."""
    for binary in available_redis_servers():
        # Without a certificate it ends at once and says so; one without TLS says that, or doesn't know the directive.
        command = [str(binary), "--port", "0", "--tls-port", "1"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        if "tls-cert-file" in ended.stdout:
            return binary
    return None


class Tls:
    """An authority, and certificates of servers and clients that it has signed.

    Args:
        folder: for their files.
        hosts: names and addresses in the certificate of servers.
    """

    def __init__(self, folder: Path, *hosts: str) -> None:
        self.authority = Authority(folder)
        self.of_servers = self.authority.sign(*(hosts or [LOOPBACK]))
        self.of_clients = self.authority.sign()

    @property
    def options(self) -> Mapping[str, str]:
        """Options of a client."""
        return {
            "ssl_ca_certs": str(self.authority.file),
            "ssl_certfile": str(self.of_clients.certificate),
            "ssl_keyfile": str(self.of_clients.key),
        }

    def with_options(self, url: str) -> str:
        """Return a URL with the options of a client."""
        return f"{url}?{urlencode(self.options)}"

    def config(self) -> Mapping[str, Any]:
        """Return arguments of `RedisServer`, or skip the test if no server of this machine speaks TLS."""
        binary = tls_binary()
        if binary is None:
            pytest.skip(NO_TLS)
        return {
            "binary": binary,
            "tls_cert_file": str(self.of_servers.certificate),
            "tls_key_file": str(self.of_servers.key),
            "tls_ca_cert_file": str(self.authority.file),
            "tls_auth_clients": True,
            "tls_replication": True,
        }
