"""Counts by bin of the window: they add up to the run's, and rates over them name their denominator."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.campaign import analyze
from analysis.clocks import BINS
from analysis.model import Outcome
from analysis.report.bins import bin_plots
from analysis.report.data import to_json
from analysis.run import measure_run
from harness.record.spec import Slo
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload


def test_a_bin_counts_arrivals_by_arrival_and_ends_by_end() -> None:
    rows = [
        make_request(0, 2 * S, ttft_ns=600 * MS, tokens=1),
        make_request(1, 2 * S + 499 * MS),
        make_request(2, 11 * S + 600 * MS, tokens=2),
    ]
    natural = make_spec(workload=make_workload(output_length="natural"))
    found = measure_run(make_record(rows, spec=natural)).bins
    assert found is not None
    assert (found.width_s, found.start_s[0], len(found.start_s)) == (0.5, 2.0, BINS)
    assert (found.offered[0], found.offered[-1], sum(found.offered)) == (2, 1, 3)
    assert (found.valid[0], found.valid[-1]) == (1, 1)  # the first missed its TTFT
    assert (found.completed[0], found.completed[1], found.completed[-1]) == (0, 2, 1)
    assert found.tokens is not None
    assert (sum(found.tokens), found.tokens[1], found.tokens[-1]) == (8, 6, 2)
    assert found.denominator == "bin of 0.5 s"


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 13_000), st.integers(1, 6), st.integers(1, 900), st.booleans()), min_size=1, max_size=30),
)
def test_bins_add_up_to_the_run(requests: list[tuple[int, int, int, bool]]) -> None:
    rows = [
        make_request(i, at * MS, tokens=n, gap_ns=gap * MS, end_kind="complete" if done else "reset")
        for i, (at, n, gap, done) in enumerate(sorted(requests))
    ]
    measures = measure_run(make_record(rows, spec=make_spec(slo=Slo(tbt_ns=400 * MS))))
    found, counts = measures.bins, measures.outcomes.counts
    assert found is not None
    assert found.tokens is not None
    assert (sum(found.offered), sum(found.valid)) == (measures.outcomes.offered, counts[Outcome.VALID])
    seconds = found.width_s * BINS
    assert sum(found.completed) / seconds == measures.figures["request_throughput"].value
    assert sum(found.tokens) / seconds == measures.figures["token_throughput"].value
    starts = [s * S for s in found.start_s]
    plain = [sum(a <= t < a + found.width_s * S for r in rows for t in r["event_ns"][: r["client_tokens"]]) for a in starts]
    assert list(found.tokens) == plain


def test_tokens_of_a_stream_that_does_not_count_them_are_unknown_in_every_bin() -> None:
    found = measure_run(make_record([make_request(0, 3 * S, event_tokens=[-1] * 5 + [0, 0])])).bins
    assert found is not None
    assert found.tokens is None


def test_every_number_of_the_document_says_its_estimand() -> None:
    record = make_record(spec=make_spec(estimand="E1"))
    document = to_json(analyze([record], incomplete=()))
    cell = document["cells"][0]
    figures = [*cell["figures"].values(), *(f for run in cell["runs"] for f in run["figures"].values())]
    figures += [said["figure"] for run in cell["runs"] for said in run["dialects"]]
    figures += [f for group in cell["groups"] for f in group["figures"].values()]
    assert {f["estimand"] for f in figures} == {"E1"}
    assert {run["bins"]["estimand"] for run in cell["runs"]} == {"E1"}


def test_the_plot_names_what_its_rates_are_divided_by() -> None:
    found = analyze([make_record()], incomplete=())
    assert "per bin of 0.5 s" in bin_plots(found)[0].caption
    bare = replace(found, cells=tuple(replace(c, runs=tuple(replace(r, bins=None) for r in c.runs)) for c in found.cells))
    assert bin_plots(bare) == ()
