"""The serving certificate: read from files, and read again when they change, without closing a connection."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from cryptography import x509

__all__ = ["Certificate", "CertificateError"]

CERT: Final = "tls.crt"
KEY: Final = "tls.key"

log = logging.getLogger(__name__)


class CertificateError(Exception):
    """The certificate cannot be used. The message is one sentence."""


class Certificate:
    """The certificate in ``folder`` (``tls.crt``, ``tls.key``).

    ``context`` is what the server listens with; each new connection is given the newest certificate by its SNI callback,
    which OpenSSL calls whether or not the client names a server. With ``client_ca`` (PEM) only clients with a certificate of
    that authority are served.
    """

    def __init__(self, folder: Path, client_ca: Path | None = None) -> None:
        self.folder, self.client_ca = folder, client_ca
        self._seen = self._stamp()
        self._current = self._load()
        self.context = self._current
        self.context.sni_callback = self._choose

    @property
    def expires(self) -> float:
        """End of the newest certificate's validity, in seconds since the epoch."""
        certificate = x509.load_pem_x509_certificate((self.folder / CERT).read_bytes())
        return certificate.not_valid_after_utc.timestamp()

    def refresh(self) -> bool:
        """Read the files again if they have changed; a broken pair is logged and the old one stays."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._current = self._load()
            self._seen = stamp
        except CertificateError as error:
            log.error("certificate not reloaded, the old one stays: %s", error)
            return False
        log.info("certificate reloaded", extra={"about": {"expires": int(self.expires)}})
        return True

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            files = [self.folder / CERT, self.folder / KEY, *([self.client_ca] if self.client_ca else [])]
            return tuple((f.stat().st_mtime_ns, f.stat().st_ino) for f in files)
        except OSError as error:
            raise CertificateError(
                f"{error.filename}: {error.strerror}; run `preflight-webhook certs`, or mount a TLS Secret there"
            ) from None

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.folder / CERT, self.folder / KEY)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(
                f"{self.folder / CERT} and {KEY} are no matching pair ({error.strerror or error}); write both anew"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise CertificateError(
                    f"{self.client_ca}: no authority's certificate in it ({error.strerror or error}); write one as PEM"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context
