"""The serving certificate: read from files, and read again when they change, without closing a
connection.
"""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from preflight_kube.cli.commands import BadInput
from preflight_kube.logs import get_logger

CERT: Final = "tls.crt"
KEY: Final = "tls.key"
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` has no name for."""

log = get_logger(__name__)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class CertificateError(BadInput):
    """The certificate cannot be used. The message is one sentence."""


class Certificate:
    """The certificate in ``folder`` (``tls.crt``, ``tls.key``).

    ``renewal`` names the command that keeps it fresh, for messages. ``context`` is what the next
    connection is served with: a new one after each change, so that no session of before is taken up
    again. With ``client_ca`` (PEM) only clients with a certificate of that authority are served,
    and no session is ever taken up again, as that would be without a look at the certificate.
    ``begins`` and ``expires``: the newest certificate's validity, in seconds since the epoch.
    """

    def __init__(self, folder: Path, renewal: str, client_ca: Path | None = None) -> None:
        self.folder, self.client_ca, self._renewal = folder, client_ca, renewal
        self._seen = self._stamp()
        self.context, self.begins, self.expires = self._load()

    def refresh(self) -> bool:
        """Read the files again if they have changed; a broken pair is logged and
        the old one stays.
        """
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self.context, self.begins, self.expires = self._load()
            self._seen = stamp
        except CertificateError as error:
            log.error("certificate not reloaded, the old one stays", error=str(error))
            return False
        log.info("certificate reloaded", expires=int(self.expires))
        return True

    def problem(self, now: float) -> str:
        """Why no client takes the certificate at ``now`` (seconds since the epoch); empty where
        they do.
        """
        where = f"the serving certificate {self.folder / CERT}"
        hint = f"write a new pair there ({self._renewal} keeps one fresh)"
        if now >= self.expires:
            return f"{where} has expired at {_moment(self.expires)}; {hint}"
        if now < self.begins:
            return f"{where} is not valid before {_moment(self.begins)}; see the clocks of this node and of who wrote it, or {hint}"
        return ""

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            files = [self.folder / CERT, self.folder / KEY]
            files += [self.client_ca] if self.client_ca else []
            return tuple((f.stat().st_mtime_ns, f.stat().st_ino) for f in files)
        except OSError as error:
            raise CertificateError(
                f"{error.filename}: {error.strerror}; run {self._renewal}, or mount a TLS Secret there"
            ) from None

    def _load(self) -> tuple[ssl.SSLContext, float, float]:
        """(what to serve with, beginning and end of its validity)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.folder / CERT, self.folder / KEY)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(
                f"{self.folder / CERT} and {KEY} are not a matching pair ({error.strerror or error}); write both anew"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise CertificateError(
                    f"{self.client_ca}: no authority's certificate in it ({error.strerror or error}); write one as PEM"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
            # As Go's servers do: an intermediate authority is enough.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            # Below, sessions are taken up from a cache that cannot be switched off.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        return context, *self._validity()

    def _validity(self) -> tuple[float, float]:
        """As a client learns it, from a handshake with ourselves: a library that parses
        certificates takes 8 MB of memory for one date.
        """
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            server.load_cert_chain(self.folder / CERT, self.folder / KEY)
            client.load_verify_locations(self.folder / CERT)
            client.check_hostname = False
            # Its own authority; dead or alive.
            client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
            up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
            ours, theirs = server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up)
            for side in (theirs, ours) * 3:  # more turns than any version of TLS takes
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
            certificate = theirs.getpeercert() or {}
            begins, expires = [
                float(ssl.cert_time_to_seconds(str(certificate[key])))
                for key in ("notBefore", "notAfter")
            ]
            return begins, expires
        except (OSError, ssl.SSLError, KeyError) as error:
            raise CertificateError(
                f"{self.folder / CERT}: no client would take it as a server's ({error}); write one that is for servers"
            ) from None
