"""sensitivity: one control at a time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import click
from rich.table import Table

from analysis.sensitivity import CONTROLS, HIDDEN, OUTPUTS, Base, Case, Control, Surface, Value, cases_for, surface
from harness.cli.output import OK, answers, console, emit_json, json_option, problem_dict
from harness.errors import Problem, UsageError

LIMITS = (
    "Consequences of a declared shape, exact and synthetic: no latencies, no runtime, no policy, and no value of a control is called best."
)

_COUNT = re.compile(r"-?[0-9]{1,18}")
"""Up to 18 digits: every count that fits 64 bits, and none so long that reading it takes time."""
_LIST = re.compile(r"[0-9]{1,18}(:[0-9]{1,18})*")
_YES = {"true": True, "false": False}


@click.command()
@click.option(
    "--base", "base_texts", multiple=True, metavar="CONTROL=VALUE", help="Change the base; repeatable. Default: 16 rows in chunks of 4."
)
@click.option("--vary", "vary_texts", multiple=True, metavar="CONTROL=V,V,...", help="Values of one control, each a case; repeatable.")
@json_option
@answers
def sensitivity(base_texts: tuple[str, ...], vary_texts: tuple[str, ...], as_json: bool) -> int:
    """Vary one control of a declared shape at a time, and show which ledgers move and which must not (F68-F72).

    A list (offered-events, realized-outputs) is written 8:4, yes and no as true and false. Without --vary: ten cases over nine controls.

    Example: trigpoint sensitivity --base prompt-rows=8192 --vary chunk-rows=512,1024,2048
    """
    base = _base([_parts("--base", text) for text in base_texts])
    wanted = [(name, value) for text in vary_texts for name, values in (_parts("--vary", text),) for value in values.split(",")]
    cases, left_out = (_read(wanted), ()) if wanted else cases_for(base)
    found = surface(base, cases)
    if as_json:
        emit_json(_document(found, left_out))
    else:
        _show(found, left_out)
    return OK


def _base(texts: Sequence[tuple[str, str]]) -> Base:
    twice = sorted(name for name, count in Counter(name for name, _ in texts).items() if count > 1)
    if twice:
        what = f"--base: {', '.join(twice)} given more than once, so the base is not one shape"
        raise UsageError.single("control_twice", what, "give each control one value; --vary takes several")
    change: dict[str, Any] = dict(_read(texts))
    return Base(**change)


def _parts(option: str, text: str) -> tuple[str, str]:
    """Split CONTROL=VALUE; hyphens of a name are those of the command line only."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError.single("option", f"{option}={text!r}: not CONTROL=VALUE", f"write e.g. {option} chunk-rows=8")
    return name.replace("-", "_"), value


def _read(texts: Sequence[tuple[str, str]]) -> list[tuple[str, Control]]:
    """Read values as what the control is: a count, a yes or no, or a list. Raises UsageError with every text that is not."""
    values = [(name, _value(name, text)) for name, text in texts]
    problems = [value for _, value in values if isinstance(value, Problem)]
    if problems:
        raise UsageError(*problems)
    return [(name, value) for name, value in values if not isinstance(value, Problem)]


def _value(name: str, text: str) -> Control | Problem:
    if name not in CONTROLS:
        return Problem("control_unknown", f"control={name}: is none of the base", f"give one of {', '.join(CONTROLS).replace('_', '-')}")
    kind = type(getattr(Base(), name))
    if kind is bool and text in _YES:
        return _YES[text]
    if kind is tuple and _LIST.fullmatch(text):
        return tuple(int(part) for part in text.split(":"))
    if kind is int and _COUNT.fullmatch(text):
        return int(text)
    shape = {bool: "true or false", tuple: "counts joined by colons, as 8:4", int: "a whole number below 10^18"}[kind]
    return Problem("control_mistyped", f"{name}={text!r}: must be {shape}", f"write it as {shape}")


def _document(found: Surface, left_out: Sequence[Problem]) -> dict[str, Any]:
    outputs = [
        {"name": o.name, "unit": o.unit, "formula": o.formula, "reads": o.reads, "offline": o.offline, "value": found.at_base[o.name]}
        for o in OUTPUTS
    ]
    return {
        "evidence_class": "synthetic",
        "limits": LIMITS,
        "base": asdict(found.base),
        "outputs": outputs,
        "cases": [_case_dict(case) for case in found.cases],
        "left_out": [problem_dict(problem) for problem in left_out],
    }


def _case_dict(case: Case) -> dict[str, Any]:
    readings = [asdict(reading) | {"moved": reading.moved} for reading in case.readings]
    return {"control": case.control, "value": case.value, "hidden": case.control in HIDDEN, "readings": readings}


def _show(found: Surface, left_out: Sequence[Problem]) -> None:
    out = console()
    out.print("Base: " + ", ".join(f"{name.replace('_', '-')}={_words(value)}" for name, value in asdict(found.base).items()))
    at_base = Table("output", "at the base", "unit", "from", "reads", box=None, pad_edge=False)
    for o in OUTPUTS:
        at_base.add_row(o.name, _words(found.at_base[o.name]), o.unit, o.formula, ", ".join(o.reads).replace("_", "-"))
    out.print(at_base)
    out.print()
    cases = Table("control", "value", "moved", "may move, did not", "must not move", box=None, pad_edge=False)
    for case in found.cases:
        moved = "\n".join(f"{r.output} {_words(r.base)} -> {_words(r.value)}" for r in case.readings if r.moved)
        still = "\n".join(r.output for r in case.readings if r.may_move and not r.moved)
        control = case.control.replace("_", "-") + (" (hidden)" if case.control in HIDDEN else "")
        cases.add_row(control, _words(case.value), moved or "-", still or "-", f"the other {len(case.must_not_move)}")
    out.print(cases)
    for problem in left_out:
        out.print(f"left out: {problem.what}")
    out.print(LIMITS)


def _words(value: Value | Control) -> str:
    if value is None or value == ():
        return "unknown"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ":".join(map(str, value))
    return f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) and value.denominator > 1 else str(value)


COMMANDS = (sensitivity,)
