"""Certificates for tests: authorities, and certificates of servers and clients that they sign."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = "127.0.0.1"
DAY = timedelta(days=1)


def name_of(host: str) -> x509.GeneralName:
    """Return a host's name or IP address as certificates have it."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass(frozen=True)
class Certificate:
    """Files with a certificate and its key."""

    certificate: Path
    key: Path

    def server_context(self, *, client_authority: Path | None) -> ssl.SSLContext:
        """Return the context of a server with this certificate.

        Args:
            client_authority: who must have signed the certificates of clients; None if these need none.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client_authority)
        return context


class Authority:
    """Signs certificates; its own is in `file`.

    Args:
        folder: for all files, made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        builder = self._builder(self._name, self._key, -DAY, DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        )

    def sign(self, *hosts: str, is_expired: bool = False, password: str = "") -> Certificate:
        """Return a new certificate for these names and IP addresses; one without any is for a client.

        Args:
            is_expired: it was valid until yesterday.
            password: of the file of its key, empty for none.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0] if hosts else "client")])
        since, until = (-2 * DAY, -DAY) if is_expired else (-DAY, DAY)
        builder = self._builder(subject, key, since, until)
        if hosts:
            names = x509.SubjectAlternativeName(list(map(name_of, hosts)))
            builder = builder.add_extension(names, critical=False)
        number = len(list(self._folder.iterdir()))
        found = Certificate(self._folder / f"{number}.crt", self._folder / f"{number}.key")
        signed = builder.sign(self._key, hashes.SHA256())
        found.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        locked: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            locked = serialization.BestAvailableEncryption(password.encode())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
        found.key.write_bytes(key.private_bytes(*form))
        return found

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, since: timedelta, until: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        return builder.not_valid_before(now + since).not_valid_after(now + until)
