"""Records and analyses as pandas data frames. pandas is an extra (``pip install "trigpoint[notebook]"``) and is imported on use only.

What did not happen is missing (NaN, NA), never 0; a figure without a value keeps its status and its reason. Frames are copies: changing one
changes no record and no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.clocks import derive_clocks
from analysis.latency import tpot_s
from analysis.model import CampaignAnalysis, CellAnalysis, CheckResult, Figure, Outcome, Outcomes, RunAnalysis
from analysis.outcomes import classify
from analysis.planned import MISSING, Int64, names, planned, without_arrival
from analysis.tails import Floats
from harness.clock import NS_PER_S
from harness.errors import HostError
from harness.record.reader import RunRecord

if TYPE_CHECKING:
    import pandas as pd

Analysis = CampaignAnalysis | CellAnalysis | RunAnalysis
"""What the frames of figures, outcomes and checks are made from."""


def requests_frame(record: RunRecord) -> pd.DataFrame:
    """One row a request that arrived, indexed by ``request_id``, in order of arrival (F30-F37).

    Seconds since the run's epoch: arrival_s, send_s, first_token_s, last_token_s, end_s. Seconds: ttft_s and e2e_s from the intended
    arrival, tpot_s of answers of two tokens or more, slip_s = send - arrival. ``outcome``: one of the six classes, for every row; only rows
    with ``in_cohort`` are counted. input_tokens, output_tokens (as counted in the stream), client, request_class, session, turn,
    http_status, end_kind. ``attrs``: campaign, cell, replicate, evidence_class, window_s (start, stop), slo, coordinates (name -> value,
    or what is not known of it), and not_due: requests that never arrived, by how they ended. Raises UsageError for torn event lists.
    """
    pandas = _pandas()
    clocks = derive_clocks(record)
    ids, every = clocks.request_id, np.ones(len(clocks), dtype=bool)
    first, arrival = clocks.first_ns, clocks.arrival_ns
    long = (clocks.tokens >= 2) & (first != MISSING)
    tpot = np.full(len(clocks), np.nan)
    tpot[long] = tpot_s(clocks, every)
    columns = {
        "arrival_s": _seconds(arrival),
        "send_s": _seconds(clocks.send_ns),
        "first_token_s": _seconds(first),
        "last_token_s": _seconds(clocks.last_ns),
        "end_s": _seconds(clocks.end_ns),
        "ttft_s": _seconds(first) - _seconds(arrival),
        "e2e_s": _seconds(clocks.end_ns) - _seconds(arrival),
        "tpot_s": tpot,
        "slip_s": _seconds(clocks.send_ns) - _seconds(arrival),
        "outcome": [str(o) for o in classify(record, clocks)],
        "end_kind": clocks.end_kind.tolist(),
        "in_cohort": clocks.in_cohort,
        "client": names(record.schedule, "client", ids).tolist(),
        "request_class": names(record.schedule, "request_class", ids).tolist(),
        "input_tokens": _whole(planned(record.schedule, "input_tokens", ids)),
        "output_tokens": _whole(clocks.tokens),
        "session": _whole(planned(record.schedule, "session", ids)),
        "turn": _whole(planned(record.schedule, "turn", ids)),
        "http_status": _whole(clocks.http_status),
    }
    frame: pd.DataFrame = pandas.DataFrame(columns, index=pandas.Index(ids, name="request_id"))
    frame.attrs.update(_attributes(record))
    return frame


def figures_frame(analysis: Analysis) -> pd.DataFrame:
    """One row a figure: of the cells (``replicate`` NA) and of every replicate below them.

    Columns: cell, arm, load, replicate, metric, unit, value (NaN unless status is "ok"), status, reason, n, population, denominator,
    percentile_rule, diagnostic, estimand, low, high, level, method, interval_n, unit_of_inference (of the interval; missing where none is).
    A percentile's interval is that of its replicates' percentiles; nothing here is an average of percentiles (F39).
    """
    rows = [where | _figure_row(figure) for where, owner in _owners(analysis) for figure in owner.figures.values()]
    return _frame(rows, integers=("replicate", "n", "interval_n"))


def outcomes_frame(analysis: Analysis) -> pd.DataFrame:
    """One row a cell (``replicate`` NA) or replicate: counts of offered requests and of the six classes (F35), and ``closes``."""
    rows = [where | outcome_row(owner.outcomes) for where, owner in _owners(analysis)]
    return _frame(rows, integers=("replicate",))


def checks_frame(analysis: Analysis) -> pd.DataFrame:
    """One row an answer of a gate: cell, replicate (NA for gates of the cell), code, verdict, reason, protects, waived, remedy, measured.

    ``protects``: the claims, separated by commas; ``measured``: a mapping of name to {value, limit, unit}. UNKNOWN never passes.
    """
    rows = [where | _check_row(check) for where, owner in _owners(analysis) for check in owner.checks]
    return _frame(rows, integers=("replicate",))


def groups_frame(analysis: CampaignAnalysis | CellAnalysis) -> pd.DataFrame:
    """One row a client or request class of a cell: cell, by, name, members, slo, outcome counts, and each figure's value (NaN if none)."""
    rows = [
        where
        | {"by": group.by, "name": group.name, "members": group.members, "slo": group.slo}
        | outcome_row(group.outcomes)
        | {name: _value(figure) for name, figure in group.figures.items()}
        for where, owner in _owners(analysis)
        if isinstance(owner, CellAnalysis)
        for group in owner.groups
    ]
    return _frame([{k: v for k, v in row.items() if k != "replicate"} for row in rows], integers=())


def outcome_row(outcomes: Outcomes) -> dict[str, Any]:
    """Counts by the names of their classes, beside the offered requests and whether they add up to them."""
    return {"offered": outcomes.offered} | {o.value: outcomes.counts.get(o, 0) for o in Outcome} | {"closes": outcomes.closes()}


def _owners(analysis: Analysis) -> Iterable[tuple[dict[str, Any], CellAnalysis | RunAnalysis]]:
    """Cells and runs of ``analysis``, each with the columns that say which it is."""
    if isinstance(analysis, RunAnalysis):
        yield {"cell": analysis.cell, "arm": analysis.arm, "load": None, "replicate": analysis.replicate}, analysis
        return
    for cell in analysis.cells if isinstance(analysis, CampaignAnalysis) else (analysis,):
        where: dict[str, Any] = {"cell": cell.cell, "arm": cell.arm, "load": cell.load}
        yield where | {"replicate": None}, cell
        yield from ((where | {"replicate": run.replicate}, run) for run in cell.runs)


def _figure_row(figure: Figure) -> dict[str, Any]:
    interval = figure.interval
    return {
        "metric": figure.metric,
        "unit": figure.unit,
        "value": _value(figure),
        "status": figure.status,
        "reason": figure.reason,
        "n": figure.n,
        "population": figure.population,
        "denominator": figure.denominator,
        "percentile_rule": figure.percentile_rule,
        "diagnostic": figure.diagnostic,
        "estimand": figure.estimand,
        "low": interval.low if interval else np.nan,
        "high": interval.high if interval else np.nan,
        "level": interval.level if interval else np.nan,
        "method": interval.method if interval else None,
        "interval_n": interval.n if interval else None,
        "unit_of_inference": interval.unit_of_inference if interval else None,
    }


def _check_row(check: CheckResult) -> dict[str, Any]:
    return {
        "code": check.code,
        "verdict": check.verdict.value,
        "reason": check.reason,
        "protects": ", ".join(claim.value for claim in check.protects),
        "waived": check.waived,
        "remedy": check.remedy,
        "measured": dict(check.measured),
    }


def _value(figure: Figure) -> float:
    return np.nan if figure.value is None or figure.status != "ok" else figure.value


def _attributes(record: RunRecord) -> dict[str, Any]:
    spec = record.spec
    stated = record.coordinates.coordinates
    never = [kind for kind in without_arrival(record) if kind is not None]
    return {
        "campaign": spec.campaign,
        "cell": spec.cell,
        "replicate": spec.replicate,
        "evidence_class": spec.evidence_class,
        "window_s": (spec.window.start_ns / NS_PER_S, spec.window.stop_ns / NS_PER_S),
        "slo": spec.slo.model_dump(),
        "coordinates": {name: c.value if c.state == "value" else f"{c.state}: {c.reason}" for name, c in stated.items()},
        "not_due": {kind: never.count(kind) for kind in sorted(set(never))},
    }


def _seconds(ns: Int64) -> Floats:
    """Stamps (n,) in s, NaN for what did not happen."""
    return np.where(ns == MISSING, np.nan, ns / NS_PER_S)


def _whole(values: Int64) -> Any:
    """Counts (n,) as pandas' nullable integers, NA where nobody stated them."""
    return _pandas().array([None if v == MISSING else v for v in values.tolist()], dtype="Int64")


def _frame(rows: Sequence[dict[str, Any]], integers: Iterable[str]) -> pd.DataFrame:
    frame: pd.DataFrame = _pandas().DataFrame(list(rows))
    return frame.astype({name: "Int64" for name in integers if name in frame.columns})


def _pandas() -> ModuleType:
    try:
        import pandas as pd  # an extra: whoever wants no frames needs no pandas
    except ImportError as error:
        what = f"pandas={error.name} cannot be imported: data frames are an extra"
        raise HostError.single("pandas_missing", what, 'pip install "trigpoint[notebook]"') from error
    return pd
