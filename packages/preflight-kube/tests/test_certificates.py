"""When a certificate is made anew, and that clients take what is made."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.admission.certificates import (
    Material,
    Renew,
    issue,
    plan,
    service_names,
    still_valid,
    union,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIFE = timedelta(days=90)
issued = partial(issue, by="tests")
NAMES = service_names("preflight-injector", "preflight")


# --- the decision


def test_fresh_material_is_kept_until_two_thirds_of_its_life() -> None:
    kept = plan(issued(NAMES, LIFE, NOW), NAMES, NOW)
    assert isinstance(kept, datetime)
    assert timedelta(days=59) < kept - NOW < timedelta(days=60)


@given(st.floats(min_value=-0.5, max_value=2))
def test_material_is_renewed_exactly_when_two_thirds_are_over_or_the_clock_is_before_it(
    share: float,
) -> None:
    stored = STORED
    leaf = x509.load_pem_x509_certificate(stored.certificate)
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    moment = start + (end - start) * share
    assert isinstance(plan(stored, NAMES, moment), datetime) == (
        start <= moment < start + (end - start) * 2 / 3
    )


def test_what_is_served_no_longer_says_why_and_keeps_what_is_trusted() -> None:
    other = issued(NAMES, LIFE, NOW + timedelta(seconds=1))
    crt, key, ca = STORED.certificate, STORED.key, STORED.authorities
    for stored, names, reason in (
        (None, NAMES, "there is no certificate yet"),
        (STORED, ("other.preflight.svc",), "the certificate is not for other.preflight.svc"),
        (Material(crt, other.key, ca), NAMES, "the stored key does not belong to the stored cert"),
        (Material(crt, key, other.authorities), NAMES, "no stored authority signed the stored"),
    ):
        found = plan(stored, names, NOW)
        assert isinstance(found, Renew)
        assert found.reason.startswith(reason)
        assert found.trusted == (stored.authorities if stored else b"")


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_unreadable_material_is_a_reason_and_never_an_exception(
    crt: bytes, key: bytes, ca: bytes
) -> None:
    assert isinstance(plan(Material(crt, key, ca), NAMES, NOW), Renew)
    assert isinstance(plan(Material(STORED.certificate, key, ca), NAMES, NOW), Renew)
    assert isinstance(plan(Material(STORED.certificate, STORED.key, ca), NAMES, NOW), Renew)


def test_renewal_keeps_the_old_authority_while_it_is_valid_and_drops_it_after() -> None:
    first = issued(NAMES, LIFE, NOW)
    later = NOW + timedelta(days=61)
    decision = plan(first, NAMES, later)
    assert isinstance(decision, Renew)
    second = issued(NAMES, LIFE, later, decision.trusted)
    assert len(x509.load_pem_x509_certificates(second.authorities)) == 2
    assert first.authorities in second.authorities
    assert first.authorities not in still_valid(second.authorities, NOW + timedelta(days=91))


def test_union_adds_only_what_is_new_and_ignores_rubbish() -> None:
    other = issued(NAMES, LIFE, NOW)
    assert union(STORED.authorities, STORED.authorities) == STORED.authorities
    assert union(STORED.authorities, other.authorities) == STORED.authorities + other.authorities
    assert union(b"rubbish", other.authorities) == other.authorities


def test_a_tls_client_that_trusts_the_bundle_accepts_old_and_new_leaf(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    old = issued(NAMES, LIFE, now)
    new = issued(NAMES, LIFE, now + timedelta(seconds=1), old.authorities)
    for served in (old, new):
        handshake(tmp_path, served, new.authorities, NAMES[0])


def test_a_tls_client_refuses_another_name(tmp_path: Path) -> None:
    material = issued(NAMES, LIFE, datetime.now(UTC))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tmp_path, material, material.authorities, "elsewhere.preflight.svc")


STORED = issued(NAMES, LIFE, NOW)


def handshake(folder: Path, served: Material, trusted: bytes, name: str) -> None:
    """A TLS handshake in memory: raises what the client raises."""
    with_files = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "pair.pem").write_bytes(served.certificate + served.key)
    with_files.load_cert_chain(folder / "pair.pem")
    client_in, server_in = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cadata=trusted.decode()).wrap_bio(
        client_in, server_in, server_hostname=name
    )
    server = with_files.wrap_bio(server_in, client_in, server_side=True)
    waiting: list[Callable[[], None]] = [client.do_handshake, server.do_handshake]
    while waiting:
        step = waiting.pop(0)
        try:
            step()
        except ssl.SSLWantReadError:
            waiting.append(step)
