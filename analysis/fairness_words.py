"""The five declarations of fairness in words, as every page of such numbers must print them (seed 0x09A)."""

from __future__ import annotations

import json

from harness.clock import NS_PER_S
from harness.record.fairness import Fairness, default_fairness
from harness.record.spec import RunSpec

_IDENTITY = {"client": "client", "request_class": "request class", "priority": "priority sent with the request"}
_ELIGIBLE = {
    "unfinished": "from arrival to the end of its last unfinished request, within the measured window",
    "waiting": "while a request of it waits for its first token, as seen from outside the server",
}
_PUBLICATION = {
    "tokens": "each completed token at its stamp, a prompt with the first; nothing of failed requests",
    "requests": "all work of an answer when it is complete; nothing of what did not end as planned",
}


def declared_fairness(spec: RunSpec) -> Fairness:
    """What holds for a run: as declared, else the defaults."""
    return spec.fairness or default_fairness(spec.window.measured_ns)


def identity_words(identity: str) -> str:
    """How an identity is called."""
    return _IDENTITY[identity].split(" sent")[0]


def identities(identity: str) -> str:
    """How several of them are called."""
    return {"client": "clients", "request_class": "request classes", "priority": "priorities"}[identity]


def declarations(declared: Fairness) -> tuple[tuple[str, str], ...]:
    """Pairs (what, how): the five declarations without the guarantee, which an arm has of its own, then widths and quanta."""
    aging = "none declared" if declared.aging_quantum_ns is None else f"one step for every {_s(declared.aging_quantum_ns)} of waiting"
    return (
        ("identity", _IDENTITY[declared.identity]),
        ("eligibility interval", _ELIGIBLE[declared.eligible]),
        (
            "service cost",
            f"w_p = {declared.input_weight:g} a prompt token, cached or not; w_q = {declared.output_weight:g} an output token",
        ),
        ("publication event", _PUBLICATION[declared.publication]),
        ("windows of the windowed gap", f"{_s(declared.window_ns)} wide, every {_s(declared.window_ns // 2)}"),
        ("horizon of starvation", f"eligible for {_s(declared.horizon_ns)} with nothing completed"),
        ("aging, for inversions", aging),
    )


def guarantee_words(declared: Fairness) -> tuple[tuple[str, str], ...]:
    """The fifth declaration, and the premises it is claimed under."""
    own = declared.guarantee
    if own is None:
        return (("guarantee", "none: what is measured is what happened, and bounds nothing"),)
    premises = ((f"premise {name.replace('_', ' ')}", _ANSWER[answer]) for name, answer in own.premises.model_dump().items())
    return (("guarantee", f"VTC, Theorem 4.4, with L_input = {own.longest_input} and M = {own.batch_tokens}"), *premises)


_ANSWER = {True: "declared to hold", False: "declared not to hold", None: "unknown"}


def span_words(t1: int, t2: int, start_ns: int) -> str:
    """A stretch (t1, t2] from the start of the measured window, whose first instant lies 1 ns after the open end t1."""
    return " to ".join(f"{max(0, t - start_ns) / NS_PER_S:.4g} s" for t in (t1, t2))


def frame(declared: Fairness) -> str:
    """Return what a fairness figure depends on, as one line: equal text, equal frame. The guarantee changes no number and is left out."""
    return json.dumps(declared.model_dump(exclude={"guarantee"}), sort_keys=True)


def _s(ns: int) -> str:
    return f"{ns / NS_PER_S:g} s"
