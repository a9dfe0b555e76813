"""Rules for arms: what an endpoint may say, what a started server may say, and what no manifest may say."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from harness.manifest.document import Path
from harness.manifest.explain import nearest, shown
from harness.manifest.findings import Finding, Findings
from harness.manifest.pins import merge_pins, pin_coordinates
from harness.manifest.schema import Arm, Pins
from harness.record.coordinates import RUN_COORDINATES

_ATTESTABLE = ("model.", "tokenizer.", "hardware.", "parallelism.", "runtime.")
_LENGTH = "max_model_len"
"""No coordinate, but without it nothing can be sent to a server that does not state it."""
_ARG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,127}", re.ASCII)
_SECRET_ENV = re.compile(r"(?:^|_)(?:TOKEN|KEY|APIKEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)")
_SECRET_ARG = re.compile(r"(?:^|[_.-])(?:api-?key|hf-?token|secret|password)(?:$|[_.-])", re.IGNORECASE)
_USERS_ONLY = frozenset({"trust-remote-code"})


def check_arms(arms: dict[str, Arm]) -> Findings:
    """An endpoint has an address and nothing to start; the others have something to start; names are names, and nothing leaks."""
    for name, arm in arms.items():
        path: Path = ("arms", name)
        yield from _endpoint(path, arm) if arm.runtime == "endpoint" else _managed(path, arm)
        yield from _names(path, arm)


def _endpoint(path: Path, arm: Arm) -> Findings:
    if arm.url is None:
        yield Finding("missing_key", path, ": an endpoint is somebody else's server, so it needs a url", "add url: http://HOST:PORT")
    else:
        yield from check_url((*path, "url"), arm.url)
    for key, value in (("args", arm.args), ("env", arm.env)):
        if value:
            remedy = "delete it; what you know of the server's settings goes into attest"
            yield Finding("not_for_endpoint", (*path, key), ": we do not start an endpoint, so nothing could obey it", remedy)
    for name, attested in arm.attest.items():
        if name == _LENGTH:
            yield from _length((*path, "attest", name), attested)
        elif name not in RUN_COORDINATES or not name.startswith(_ATTESTABLE):
            choices = [c for c in RUN_COORDINATES if c.startswith(_ATTESTABLE)]
            near = nearest(name, choices)
            remedy = f"did you mean {near}?" if near else f"use one of: {', '.join(choices)}"
            yield Finding("unknown_coordinate", (*path, "attest", name), ": not a coordinate of the system that one can vouch for", remedy)


def _length(path: Path, value: object) -> Findings:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        remedy = "write a whole number of tokens, e.g. max_model_len: 8192"
        yield Finding("bad_number", path, f"={shown(value)}: the longest prompt and reply together, in tokens", remedy)


def check_url(path: Path, url: str) -> Findings:
    """An http(s) address without credentials, query or fragment."""
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or 0 < parts.port < 65536
        host_ok = bool(parts.hostname) and _host_ok(parts.hostname or "")
    except ValueError:
        port_ok = host_ok = False
        parts = urlsplit("")
    remedy = "write http://HOST:PORT or https://HOST[:PORT][/PATH]; keys go into your own configuration, bound to the host"
    if parts.scheme not in {"http", "https"} or not host_ok or not port_ok or re.search(r"[\s\\]", url):
        yield Finding("bad_url", path, f"={shown(url)}: not an http(s) address", remedy)
    elif parts.username is not None or parts.query or parts.fragment:
        yield Finding("bad_url", path, ": credentials, query and fragment do not belong in it, they would be published", remedy)


def _host_ok(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?", host, re.ASCII) is not None
    return True


def _managed(path: Path, arm: Arm) -> Findings:
    if arm.url is not None:
        yield Finding(
            "only_for_endpoint",
            (*path, "url"),
            f": {arm.runtime} is started by us, on an address of ours",
            "delete it, or set runtime: endpoint",
        )
    if arm.metrics is not None:
        what = f": {arm.runtime} is started by us, so its adapter knows its counters"
        yield Finding("only_for_endpoint", (*path, "metrics"), what, "delete it")
    if arm.attest:
        what = f": {arm.runtime} is started by us, so its coordinates are observed, not vouched for"
        yield Finding("only_for_endpoint", (*path, "attest"), what, "delete it")
    if arm.runtime in {"vllm", "sglang"} and arm.version is None:
        what = f": {arm.runtime} without a version would mean another system on every machine"
        yield Finding("missing_key", path, what, "add version, e.g. version: 0.32.0")


def _names(path: Path, arm: Arm) -> Findings:
    for name in arm.args:
        if not _ARG_NAME.fullmatch(name):
            yield Finding(
                "bad_name", (*path, "args", name), ": not the name of an argument", "write it without leading dashes, e.g. max-num-seqs"
            )
        if name.lower().replace("_", "-") in _USERS_ONLY:
            what = ": lets a model run code, which a manifest never decides alone"
            yield Finding("not_in_manifest", (*path, "args", name), what, "allow it in your own configuration or on the command line")
    for section, names, secret in (("env", arm.env, _SECRET_ENV), ("args", arm.args, _SECRET_ARG)):
        for name in names:
            if secret.search(name):
                what = ": looks like a secret, and a manifest is published with its results"
                yield Finding("secret", (*path, section, name), what, "put it into your own configuration")
    for name in arm.env:
        if not _ENV_NAME.fullmatch(name):
            yield Finding("bad_name", (*path, "env", name), ": not the name of an environment variable", "use A-Z, 0-9 and _")


def check_attested(arms: dict[str, Arm], pins: Pins) -> Findings:
    """What is vouched for must not contradict what is pinned."""
    for name, arm in arms.items():
        pinned = pin_coordinates(merge_pins(pins, arm.pins))
        for coordinate, value in arm.attest.items():
            if coordinate in pinned and pinned[coordinate] is not None and pinned[coordinate] != value:
                what = f"={shown(value)} contradicts the pin {shown(pinned[coordinate])}"
                remedy = f"attest what is pinned, or override the pin in arms.{name}.pins"
                yield Finding("attest_contradicts_pin", ("arms", name, "attest", coordinate), what, remedy)
