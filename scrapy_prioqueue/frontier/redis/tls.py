"""TLS options of connections: the same with every version of redis-py, and checked before the first connection."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.connection import SSLConnection

from scrapy_prioqueue.errors import SettingError

OPTIONS = "PRIOQUEUE_REDIS_OPTIONS"

_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
_AUTHORITIES = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")
_VERIFICATIONS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@lru_cache(maxsize=16)
def _context(
    *,
    certfile: str | None,
    keyfile: str | None,
    password: str | None,
    ca_certs: str | None,
    ca_path: str | None,
    ca_data: str | bytes | None,
    cert_reqs: ssl.VerifyMode,
    check_hostname: bool,
    min_version: ssl.TLSVersion | None,
    ciphers: str | None,
    further_flags: tuple[ssl.VerifyFlags, ...],
    other_flags: tuple[ssl.VerifyFlags, ...],
    changed_at: tuple[int, ...],
) -> ssl.SSLContext:
    """Return a context; another one is needed when a file changes."""
    context = ssl.create_default_context()
    context.check_hostname = check_hostname
    context.verify_mode = cert_reqs
    for flag in further_flags:
        context.verify_flags |= flag
    for flag in other_flags:
        context.verify_flags &= ~flag
    if certfile:
        context.load_cert_chain(certfile, keyfile, password)
    if ca_certs or ca_path or ca_data:
        context.load_verify_locations(ca_certs, ca_path, ca_data)
    if min_version is not None:
        context.minimum_version = min_version
    if ciphers:
        context.set_ciphers(ciphers)
    return context


def _context_of(options: Any) -> ssl.SSLContext:
    """Return the context for the attributes that redis-py's connections have."""
    files = [file for file in (options.certfile, options.keyfile, options.ca_certs) if file]
    return _context(
        certfile=options.certfile,
        keyfile=options.keyfile,
        password=getattr(options, "certificate_password", None) or getattr(options, "password", None),
        ca_certs=options.ca_certs,
        ca_path=getattr(options, "ca_path", None),
        ca_data=options.ca_data,
        cert_reqs=options.cert_reqs,
        check_hostname=options.check_hostname,
        min_version=getattr(options, "min_version", None) or getattr(options, "ssl_min_version", None),
        ciphers=getattr(options, "ciphers", None) or getattr(options, "ssl_ciphers", None),
        further_flags=_flags(options, "include_verify_flags"),
        other_flags=_flags(options, "exclude_verify_flags"),
        changed_at=tuple(Path(file).stat().st_mtime_ns for file in files),
    )


def _flags(options: Any, name: str) -> tuple[ssl.VerifyFlags, ...]:
    """Return flags, which older releases of redis-py don't have."""
    return tuple(getattr(options, name, None) or getattr(options, f"ssl_{name}", None) or ())


class AsyncTlsConnection(AsyncSSLConnection):
    """A connection that reads files of certificates again only if they have changed.

    redis-py does that for each connection, which takes tens of milliseconds, for all authorities of the system; or
    never, for asyncio. Certificates may be renewed while a worker runs.
    """

    async def connect(self) -> None:
        if not self.is_connected:
            self.ssl_context.context = _context_of(self.ssl_context)
        await super().connect()  # type: ignore[no-untyped-call]


class TlsConnection(SSLConnection):
    """Likewise, one that blocks."""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        if self.ssl_validate_ocsp or self.ssl_validate_ocsp_stapled:
            found: ssl.SSLSocket = super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
            return found
        return _context_of(self).wrap_socket(sock, server_hostname=self.host)


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


def plain_options(options: Mapping[str, Any], *, where: str = OPTIONS) -> dict[str, Any]:
    """Return options of a connection without TLS.

    Args:
        where: as in `tls_options`.

    Raises:
        SettingError: they ask for TLS.
    """
    wanted = sorted(name for name in {"ssl", *_FILES, *_AUTHORITIES} if options.get(name))
    if wanted:
        raise SettingError(where, wanted, "for TLS, PRIOQUEUE_REDIS_URL must begin with rediss instead of redis")
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
