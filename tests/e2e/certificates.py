"""Certificates made for one test by the machine's own openssl: an authority, and servers that it vouches for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

OPENSSL = shutil.which("openssl")


class Pair(NamedTuple):
    """A certificate and its key, PEM files."""

    certificate: Path
    key: Path


def _openssl(*words: str | Path) -> None:
    subprocess.run([str(OPENSSL), *map(str, words)], check=True, capture_output=True, timeout=60)


def _key(path: Path) -> Path:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    return path


def authority(folder: Path) -> Pair:
    """Make an authority that nobody trusts yet."""
    key, certificate = _key(folder / "ca.key"), folder / "ca.pem"
    constraints = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    _openssl("req", "-x509", "-key", key, "-out", certificate, "-days", "2", "-subj", "/CN=A test's authority", *constraints)
    return Pair(certificate, key)


def server(folder: Path, ca: Pair, name: str) -> Pair:
    """Make a server's certificate for ``name``, e.g. ``IP:127.0.0.1`` or ``DNS:other.test``."""
    stem = name.replace(":", "-")
    key, certificate, request, more = _key(folder / f"{stem}.key"), folder / f"{stem}.pem", folder / f"{stem}.csr", folder / f"{stem}.ext"
    more.write_text(f"subjectAltName={name}\nbasicConstraints=CA:FALSE\n", encoding="ascii")
    _openssl("req", "-new", "-key", key, "-out", request, "-subj", "/CN=a test's server")
    signing = ("-CA", ca.certificate, "-CAkey", ca.key, "-CAcreateserial")
    _openssl("x509", "-req", "-in", request, *signing, "-days", "2", "-extfile", more, "-out", certificate)
    return Pair(certificate, key)
