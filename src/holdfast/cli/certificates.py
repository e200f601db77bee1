"""An authority that signs certificates for development, made with the library `cryptography`."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.model.errors import ConfigError

# A clock that is a little late must not find the certificate not valid yet.
_BEFORE: Final = dt.timedelta(hours=1)


class SignedCertificate(NamedTuple):
    """A certificate and its private key, in PEM form."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, valid_for: dt.timedelta) -> Self:
        """Return a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Holdfast development authority")])
        usage = _key_usage(key_cert_sign=True, crl_sign=True)
        certificate = (
            _begin(name, name, key.public_key(), valid_for)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """Return the authority with this certificate and key, in PEM form.

        Raises:
            ConfigError: they are not an authority's.
        """
        try:
            parsed = x509.load_pem_x509_certificate(certificate)
            private = serialization.load_pem_private_key(key, None)
            is_match = private.public_key() == parsed.public_key()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"ca.pem and ca-key.pem are not an authority that can sign: {error}") from error
        if not is_match or not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                "ca-key.pem is not the key of ca.pem, or of another kind: remove both to make a new authority"
            )
        return cls(parsed, private)

    def encode_certificate(self) -> bytes:
        """Return the certificate of the authority, in PEM form."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def encode_key(self) -> bytes:
        """Return the private key of the authority, in PEM form."""
        return _encode_key(self._key)

    def sign(self, hosts: Sequence[str], valid_for: dt.timedelta) -> SignedCertificate:
        """Return a new certificate for servers on *hosts*, which also serves them and others as clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Holdfast")])
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _begin(name, self._certificate.subject, key.public_key(), valid_for)
            .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(purposes, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return SignedCertificate(certificate.public_bytes(serialization.Encoding.PEM), _encode_key(key))


def _begin(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, valid_for: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + valid_for)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    # PKCS#8: Java's servers read no other form.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
