"""TLS options of connections: the same with every version of redis-py, and checked before the first connection."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis.asyncio.connection import SSLConnection

from scrapy_prioqueue.errors import SettingError

OPTIONS = "PRIOQUEUE_REDIS_OPTIONS"

_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
_AUTHORITIES = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")
_VERIFICATIONS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class FreshConnection(SSLConnection):
    """Reads the files of certificates each time it connects, as redis-py's blocking connection does.

    Certificates may be renewed while a worker runs.
    """

    async def connect(self) -> None:
        if not self.is_connected:
            self.ssl_context.context = None
        await super().connect()  # type: ignore[no-untyped-call]


def tls_options(options: Mapping[str, Any], *, where: str = OPTIONS) -> dict[str, Any]:
    """Return options of a connection that uses TLS.

    Before release 6, redis-py accepted the certificate of another host. A check that the user has disabled stays so.

    Args:
        where: setting that the options are from, for errors.

    Raises:
        SettingError: one of them can't be used.
    """
    found = dict(options)
    found["ssl_cert_reqs"] = verification = _verification(found.get("ssl_cert_reqs", "required"), where)
    found["ssl_check_hostname"] = verification != "none" and found.get("ssl_check_hostname", True)
    if isinstance(found.get("ssl_min_version"), (str, int)):
        found["ssl_min_version"] = _version(found["ssl_min_version"], where)
    if found.get("ssl_certfile") and not found.get("ssl_keyfile"):
        # One file may have both, but asyncio's client of redis-py 5 uses no certificate without this option.
        found["ssl_keyfile"] = found["ssl_certfile"]
    _Check(found, where).run()
    return found


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a connection without TLS.

    Raises:
        SettingError: they ask for TLS.
    """
    wanted = sorted(name for name in {"ssl", *_FILES, *_AUTHORITIES} if options.get(name))
    if wanted:
        raise SettingError(OPTIONS, wanted, "for TLS, PRIOQUEUE_REDIS_URL must begin with rediss instead of redis")
    return {name: value for name, value in options.items() if name != "ssl" and not name.startswith("ssl_")}


def _verification(value: Any, where: str) -> str:
    text = "none" if value is None else str(value).lower()
    for name, mode in _VERIFICATIONS.items():
        if text == name or value is mode:
            return name
    raise SettingError(f"{where}['ssl_cert_reqs']", value, "must be 'required', 'optional' or 'none'")


def _version(value: str | int, where: str) -> ssl.TLSVersion:
    try:
        return ssl.TLSVersion(int(value))
    except ValueError:
        raise SettingError(f"{where}['ssl_min_version']", value, "must be a number as of ssl.TLSVersion") from None


class _Check:
    """Loads all files: the client's errors don't say which one can't be used, and it asks for a missing password."""

    def __init__(self, options: Mapping[str, Any], where: str) -> None:
        self._options = options
        self._where = where
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def run(self) -> None:
        for name in _FILES:
            self._read(name)
        self._load_certificate()
        self._load_authorities()
        if self._options.get("ssl_ciphers"):
            try:
                self._context.set_ciphers(self._options["ssl_ciphers"])
            except ssl.SSLError as error:
                raise self._refused("ssl_ciphers", "names no cipher that OpenSSL knows") from error

    def _refused(self, name: str, why: str) -> SettingError:
        return SettingError(f"{self._where}[{name!r}]", self._options.get(name), why)

    def _read(self, name: str) -> None:
        try:
            if self._options.get(name):
                Path(self._options[name]).read_bytes()
        except OSError as error:
            raise self._refused(name, f"can't be read: {error.strerror}") from error

    def _load_certificate(self) -> None:
        certificate, key, password = (self._options.get(f"ssl_{part}") for part in ("certfile", "keyfile", "password"))
        if key and not certificate:
            raise self._refused("ssl_keyfile", "there must be a certificate to the key, in ssl_certfile")
        try:
            if certificate:
                self._context.load_cert_chain(certificate, key, password or _no_password)
        except _PasswordMissing as error:
            raise self._refused("ssl_keyfile", "the key has a password: set ssl_password") from error
        except ssl.SSLError as error:
            if "KEY_VALUES_MISMATCH" in str(error):
                raise self._refused("ssl_keyfile", "is not the key of the certificate in ssl_certfile") from error
            why = "is no certificate with its key (ssl_keyfile) in PEM format, or ssl_password is not that of the key"
            raise self._refused("ssl_certfile", why) from error

    def _load_authorities(self) -> None:
        given = [name for name in _AUTHORITIES if self._options.get(name)]
        try:
            if given:
                self._context.load_verify_locations(*map(self._options.get, _AUTHORITIES))
        except OSError as error:
            raise self._refused(given[0], f"has no certificates in PEM format: {error}") from error


class _PasswordMissing(Exception):
    """A key can't be used without its password."""


def _no_password() -> str:
    raise _PasswordMissing
