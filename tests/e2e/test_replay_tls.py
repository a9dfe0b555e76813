"""TLS against a real server in its own process: the same rows as without it, handshakes ahead of need, nobody trusted blindly."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from harness.campaign.servers import _unreachable
from harness.errors import HostError
from harness.replay.session import ReplaySession
from harness.runtimes.asking import distrust
from tests.e2e import certificates
from tests.e2e.certificates import Pair
from tests.e2e.engine_here import Left, drive
from tests.e2e.replaying import CLOCK, Row, Served, plan, replay, serve

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(certificates.OPENSSL is None, reason="no openssl on this machine to make certificates")]

NAMES = ["good", "slow", "bytewise", "interim", "until_eof", "long_line", "reset", "early_close", "half_closed", "no_answer"]
NAMES += ["half_character", "bad_json", "no_done", "gzip", "error_event", "endless_head", "two_lengths", "status_302", "status_429"]
SAID = ("end_kind", "http_status", "error_status", "client_tokens", "event_kind", "event_tokens", "event_bytes")


@dataclass(frozen=True, slots=True)
class Trust:
    """An authority and who it vouches for."""

    authority: Pair
    here: Pair
    elsewhere: Pair


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    folder = tmp_path_factory.mktemp("certificates")
    ca = certificates.authority(folder)
    return Trust(ca, certificates.server(folder, ca, "IP:127.0.0.1"), certificates.server(folder, ca, "DNS:other.test"))


@pytest.fixture
def trusted(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's environment names the authority, as for every program that uses OpenSSL."""
    monkeypatch.setenv("SSL_CERT_FILE", str(trust.authority.certificate))


@pytest.fixture(scope="module")
def secure(trust: Trust) -> Iterator[Served]:
    with serve("--tls", *map(str, trust.here)) as server:
        yield server


def told(rows: list[Row]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in SAID) for row in sorted(rows, key=lambda row: int(row["request_id"]))]


@pytest.mark.usefixtures("trusted")
def test_rows_are_those_of_the_same_server_without_tls(secure: Served, tmp_path: Path) -> None:
    with serve() as plain:
        without, _ = drive(plan(tmp_path, plain.port, NAMES, every_ms=30, end_ms=60_000))
    within, left = drive(plan(tmp_path, secure.port, NAMES, every_ms=30, end_ms=60_000, tls=True))
    assert told(within) == told(without)
    assert left == Left(descriptors=0, tasks=0, connections=0, requests=0)
    slow = next(row for row in within if row["request_id"] == NAMES.index("slow"))
    assert len(set(slow["event_ns"])) > 4  # stamped as records come in, not when an answer is over; a busy host reads several at once
    assert slow["event_ns"] == sorted(slow["event_ns"])
    assert slow["send_ns"] < slow["headers_ns"] <= slow["event_ns"][0]


@pytest.mark.usefixtures("trusted")
def test_handshakes_are_over_before_the_first_request_and_are_used_again(trust: Trust, tmp_path: Path) -> None:
    events = tmp_path / "events"
    with serve("--tls", *map(str, trust.here), "--events", str(events)) as server:
        got, summary = replay(plan(tmp_path / "run", server.port, ["good"] * 60, tls=True, warm_connections=6))
    said = events.read_text().split("\n")[:-1]
    assert (summary.fault, {row["end_kind"] for row in got}) == (None, {"complete"})
    first = said.index("asked good")
    assert said[:first].count("open") >= 6
    assert said.count("asked good") == 60
    assert said.count("open") < 40  # each is good for many
    assert sum(row["reused_connection"] for row in got) > 30


@pytest.mark.usefixtures("trusted")
def test_client_stop_and_large_bodies_work_under_tls(secure: Served, tmp_path: Path) -> None:
    prompts = ["slow", "good " + "x" * 2_000_000, "slow", "good"]
    made = plan(tmp_path, secure.port, prompts, tls=True, stop_after=np.array([3, -1, 1, -1]))
    got, summary = replay(made)
    assert summary.fault is None
    assert [row["end_kind"] for row in got] == ["client_stop", "complete", "client_stop", "complete"]
    assert got[0]["client_tokens"] >= 3


@pytest.mark.usefixtures("trusted")
def test_a_large_body_is_encrypted_piece_by_piece_and_small_requests_overtake_it(trust: Trust, tmp_path: Path) -> None:
    events = tmp_path / "events"
    prompts = ["until_eof " + "x" * 8_000_000, *["good"] * 20]
    with serve("--tls", *map(str, trust.here), "--events", str(events)) as server:
        got, left = drive(plan(tmp_path, server.port, prompts, every_ms=5, end_ms=60_000, tls=True))
    asked = [line for line in events.read_text().splitlines() if line.startswith("asked")]
    assert asked == ["asked good"] * 20 + ["asked until_eof"]
    assert {row["end_kind"] for row in got} == {"complete"}
    assert left == Left(descriptors=0, tasks=0, connections=0, requests=0)


def refusal(port: int, folder: Path) -> str:
    session = ReplaySession(plan(folder, port, ["good"], tls=True), CLOCK)
    with pytest.raises(HostError) as caught:
        session.start()
    assert session.finished(0)
    return str(caught.value)


def test_a_certificate_that_nobody_vouches_for_is_refused_by_default(secure: Served, tmp_path: Path) -> None:
    said = refusal(secure.port, tmp_path)
    assert "the server's certificate is not trusted" in said
    assert "unable to get local issuer certificate" in said


@pytest.mark.usefixtures("trusted")
def test_a_certificate_of_another_host_is_refused(trust: Trust, tmp_path: Path) -> None:
    with serve("--tls", *map(str, trust.elsewhere)) as server:
        assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in refusal(server.port, tmp_path)


def test_an_endpoint_is_told_apart_from_one_that_does_not_answer(secure: Served, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"https://127.0.0.1:{secure.port}"
    assert distrust(url) == "unable to get local issuer certificate"
    said = str(_unreachable("mine", url))
    assert "gave a certificate that is not trusted (unable to get local issuer certificate)" in said
    assert "SSL_CERT_FILE" in said
    monkeypatch.setenv("SSL_CERT_FILE", str(trust.authority.certificate))
    assert distrust(url) is None
    assert distrust(url.replace("https", "http")) is None


def _greet(listener: socket.socket) -> None:
    """Answer every client in plain HTTP, as a server does that was asked for TLS and has none."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.recv(1 << 16)


@pytest.mark.usefixtures("trusted")
def test_a_server_that_speaks_no_tls_is_refused_before_the_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_greet, args=(listener,))
        thread.start()
        try:
            said = refusal(listener.getsockname()[1], tmp_path)
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends the accept under way; closing alone would not
            thread.join()
    assert "WRONG_VERSION_NUMBER" in said
