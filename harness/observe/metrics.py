"""From a server's Prometheus page to canonical values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from harness.runtimes.contract import MetricRule


def canonical_values(page: str, rules: Sequence[MetricRule]) -> dict[str, float]:
    """Return canonical name -> the samples that rules of that name match, joined as the rules say; ``name/label`` where a rule keeps a
    label apart. Names without a sample are absent, never 0.

    Samples that are no finite number are no samples. Raises ValueError when a line that a rule asks for cannot be parsed.
    """
    asked: dict[str, list[MetricRule]] = {}
    for rule in rules:
        asked.setdefault(rule.name, []).append(rule)
    # Parsing a whole page costs 10 ms and more, four times a second: only lines that start like a wanted metric go to the parser.
    wanted = tuple(asked)
    lines = [line for line in page.split("\n") if line.startswith(wanted)] if wanted else []
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            for rule in asked.get(sample.name, ()):
                key = _key(rule, sample.labels)
                if key is not None and math.isfinite(sample.value):
                    found.setdefault(key, []).append(sample.value)
    averaged = {rule.canonical for rule in rules if rule.how == "mean"}
    return {key: sum(values) / (len(values) if key.partition("/")[0] in averaged else 1) for key, values in found.items()}


def _key(rule: MetricRule, labels: dict[str, str]) -> str | None:
    """Name a matching sample adds to; None when the rule does not match it."""
    if not rule.where.items() <= labels.items():
        return None
    if rule.by is None:
        return rule.canonical
    return f"{rule.canonical}/{labels[rule.by]}" if rule.by in labels else None
