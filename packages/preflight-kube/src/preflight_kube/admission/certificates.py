"""What is served, what is trusted, and when both are made anew. Pure: bytes and a moment in, a
decision out.

Every renewal makes a new authority and a new serving certificate, and the authority's key is
dropped as soon as it has signed. So no key that could sign for the admission endpoint is ever
stored, and there is one renewal path instead of a frequent one (leaf) and one that is first walked
years after the install (authority).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from preflight_kube.runtime.events import timestamp

BACKDATE = timedelta(hours=1)
"""Clocks of API server and certificate maker may differ by this much."""


@dataclass(frozen=True)
class Material:
    """What the Secret holds, each as PEM: the served chain, its key, and every authority still to
    be trusted.
    """

    certificate: bytes
    key: bytes
    authorities: bytes


@dataclass(frozen=True)
class Renew:
    """New material is needed, and why. ``trusted`` are the authorities that must stay trusted
    beside the new one.
    """

    reason: str
    trusted: bytes = b""


def plan(stored: Material | None, names: tuple[str, ...], now: datetime) -> datetime | Renew:
    """Decide whether ``stored`` can go on being served for ``names`` (DNS names) at ``now``
    (timezone-aware); until when, if so.

    Never raises: material that cannot be read is a reason to renew.
    """
    if stored is None:
        return Renew("there is no certificate yet")
    trusted = still_valid(stored.authorities, now)
    try:
        leaf = x509.load_pem_x509_certificate(stored.certificate)
        key = serialization.load_pem_private_key(stored.key, password=None)
        authorities = x509.load_pem_x509_certificates(stored.authorities)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return Renew("the stored certificate, key or authority cannot be read", trusted)
    if key.public_key() != leaf.public_key():
        return Renew("the stored key does not belong to the stored certificate", trusted)
    if not any(_signed_by(leaf, authority) for authority in authorities):
        return Renew("no stored authority signed the stored certificate", trusted)
    if missing := sorted(set(names) - _dns_names(leaf)):
        return Renew(f"the certificate is not for {', '.join(missing)}", trusted)
    if now < leaf.not_valid_before_utc:
        return Renew(
            f"the certificate is not valid before {timestamp(leaf.not_valid_before_utc)}", trusted
        )
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    renew_at = begins + (ends - begins) * 2 / 3
    if now >= renew_at:
        return Renew(f"the certificate expires at {timestamp(ends)}", trusted)
    return renew_at


def issue(
    names: tuple[str, ...], lifetime: timedelta, now: datetime, trusted: bytes = b"", *, by: str
) -> Material:
    """New authority and serving certificate for ``names``, good until ``now + lifetime``; ``by`` is
    in the authority's name.

    ``trusted``: PEM authorities to keep beside the new one, so that what old pods still serve stays
    believed.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # The moment makes the subject unique: verifiers look authorities up by subject.
    authority_name = _subject(f"{by} authority {timestamp(now)}")
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def signed(
        subject: x509.Name,
        of: ec.EllipticCurvePrivateKey,
        critical: tuple[x509.ExtensionType, ...],
        *more: x509.ExtensionType,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(now + lifetime)
        )
        for extension in (*critical, *more):
            builder = builder.add_extension(extension, critical=extension in critical)
        return builder.sign(authority_key, hashes.SHA256())

    signs = x509.BasicConstraints(ca=True, path_length=0), _key_usage(signs_certificates=True)
    authority = signed(authority_name, authority_key, signs, authority_id)
    leaf = signed(
        _subject(names[0][:64]),
        key,
        (x509.BasicConstraints(ca=False, path_length=None), _key_usage(signs_certificates=False)),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]),
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id),
    )
    return Material(
        certificate=leaf.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        authorities=authority.public_bytes(serialization.Encoding.PEM) + trusted,
    )


def still_valid(bundle: bytes, now: datetime) -> bytes:
    """The authorities of a PEM ``bundle`` that have not expired at ``now``; nothing when it cannot
    be read.
    """
    valid = (it for it in _certificates(bundle) if it.not_valid_after_utc > now)
    return b"".join(it.public_bytes(serialization.Encoding.PEM) for it in valid)


def union(first: bytes, second: bytes) -> bytes:
    """Both PEM bundles as one: ``first`` as it is, then what only ``second`` has. An unreadable one
    counts as empty.
    """
    both = (*_certificates(first), *_certificates(second))
    return b"".join(dict.fromkeys(it.public_bytes(serialization.Encoding.PEM) for it in both))


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names of a Service. The API server asks for the first."""
    return (
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
        f"{service}.{namespace}",
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _dns_names(leaf: x509.Certificate) -> set[str]:
    try:
        extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(extension.value.get_values_for_type(x509.DNSName))


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
