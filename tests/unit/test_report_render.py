import dataclasses
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from analysis.effect_model import Front, FrontPoint
from analysis.model import CampaignAnalysis, Outcome, Outcomes, Reason, Refusal, Reuse, Stream, Tally
from analysis.report import render_html, render_markdown, render_terminal, to_json
from analysis.report.markdown import escape
from analysis.report.words import clean, number
from harness.record.canonical import canonical_json
from tests.report_demo import GROUPS, campaign, cell, outcomes

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></svg><b onmouseover='x'>",
    "{{ 7*7 }}{% raw %}",
    "$\\frac{1}{$ a_b^c",
    "_hidden|pipe|`code`[link](http://evil.example)",
    "[bold red]markup[/bold red]",
    "\x1b[31mred\x1b]0;title\x07 \u202ereversed \ud800 two\nlines",
)


def hostile(text: str) -> CampaignAnalysis:
    """The same text wherever a file could have put it."""
    c = campaign(refused=True, campaign=text, question=text, waivers=((text, text),), incomplete=(text,))
    bad = dataclasses.replace(cell("x", 0.0, fail=True), cell=text, arm=text, load=text)
    check = dataclasses.replace(bad.checks[0], code=text, reason=text, remedy=text, measured={text: text})
    run = dataclasses.replace(bad.runs[0], cell=text, path=text, checks=(check,))
    figure = dataclasses.replace(bad.figures["goodput"], population=text, reason=text, unit=text, metric=text)
    lost, proof = Tally(None, 1, text), run.sent
    assert proof is not None
    chain = {"name": text, text: text, "effect": {"before": {text: {text: text}}, "after": {text: {text: 1.0}}, text: text}}
    reuse = Reuse({"1": lost, "16": Tally(1, 1)}, lost, text, text)
    never = dataclasses.replace(proof.arrivals[0], not_due={text: 1}, planned_stream=Stream(1, 1.0, None, {text: None}))
    proof = dataclasses.replace(proof, arrivals=(never,), server={"input": lost, "output": lost}, reuse=reuse, transforms=(chain,))
    own = {**GROUPS[0].figures, "ttft_p50": dataclasses.replace(GROUPS[0].figures["ttft_p50"], value=None, status="unknown", reason=text)}
    groups = tuple(dataclasses.replace(g, name=text, slo=text, figures=own, reuse=reuse) for g in GROUPS[:5])
    bad = dataclasses.replace(
        bad,
        runs=(dataclasses.replace(run, sent=proof),),
        checks=(check,),
        figures={text: figure},
        coordinates={text: text},
        loop=f"closed {text}",
        groups=groups,
        outcomes=dataclasses.replace(outcomes(1), not_due={text: 1}),
    )
    verdict = Refusal(text, (Reason(text, text, text),))
    pair = dataclasses.replace(c.comparisons[0], a=text, checks=(check,))
    point = FrontPoint(text, text, text, figure, figure, "dominated", (text,), (Reason(text, text, text),))
    front = Front(text, text, "declared", 0.95, 0.02, (point, dataclasses.replace(point, standing="front", dominated_by=())))
    provenance = {text: text, "traces": [{"licence": text}]}
    return dataclasses.replace(c, cells=(*c.cells, bad), comparisons=(pair,), verdict=verdict, provenance=provenance, front=front)


class Page(HTMLParser):
    """Every tag, attribute and visible text of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(k, v or "") for k, v in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "nav", "a", "main", "section", "div", "h1", "h2", "h3", "p", "strong", "ul", "ol"),
    *("li", "br", "code", "span", "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
    *("svg", "defs", "g", "path", "use", "text", "clippath", "rect"),
}


@pytest.fixture(scope="module")
def ranked() -> str:
    return render_html(campaign())


@pytest.fixture(scope="module")
def refused() -> str:
    return render_html(campaign(refused=True))


@pytest.fixture(scope="module")
def attacked() -> str:
    text = " ".join(HOSTILE)
    return render_html(hostile(text))


def test_hostile_names_stay_text(attacked: str) -> None:
    page = Page(attacked)
    assert page.tags <= ALLOWED
    assert [k for k, _ in page.attributes if k.startswith("on") or k in ("src", "srcset", "action")] == []
    shown = "".join(page.text)
    assert shown.count("<script>alert(1)</script>") > 10
    assert "{{ 7*7 }}" in shown
    assert "\x1b" not in attacked
    assert "\u202e" not in attacked
    attacked.encode("utf-8")


@pytest.mark.parametrize("kind", ["ranked", "refused", "attacked"])
def test_a_page_reaches_for_nothing_outside_itself(kind: str, request: pytest.FixtureRequest) -> None:
    page = Page(request.getfixturevalue(kind))
    links = [v for k, v in page.attributes if k in ("href", "xlink:href")]
    assert links
    assert all(v.startswith("#") for v in links)
    assert all(v.startswith("http://www.w3.org/") for k, v in page.attributes if "http" in v and k.startswith("xmlns"))
    assert not any("http" in v for k, v in page.attributes if not k.startswith("xmlns") and k != "content")
    assert any(v.startswith("default-src 'none'") for k, v in page.attributes if k == "content")
    assert not re.search(r"url\((?!#)", request.getfixturevalue(kind))
    assert "@import" not in request.getfixturevalue(kind)


def test_rendering_again_gives_the_same_bytes(ranked: str) -> None:
    again = campaign()
    assert render_html(again) == ranked
    assert render_markdown(again) == render_markdown(campaign())
    assert canonical_json(to_json(again)) == canonical_json(to_json(campaign()))


def test_figures_follow_the_page_in_light_and_dark(ranked: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", ranked, flags=re.DOTALL)
    assert len(svgs) == 6
    assert all("var(--ink)" in s for s in svgs)
    assert not any("#010203" in s or "Matplotlib" in s or "<metadata" in s for s in svgs)
    assert "mathdefault" not in ranked


def test_the_verdict_comes_first_and_everything_has_its_place(ranked: str, refused: str) -> None:
    body = ranked[ranked.index("<main>") :]
    places = [body.index(w) for w in ("Ranking by goodput", "Waived gates", 'id="outcomes"', 'id="numbers"', "Time to first token",
                                      "Requests in flight", 'id="sent"',
                                      'id="every"', 'id="gates"', 'id="coordinates"', 'id="provenance"')]  # fmt: skip
    assert places == sorted(places)
    assert "No ranking" in refused[refused.index("<main>") :][:300]


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_a_refusal_lists_every_reason_remedy_waiver_and_gap(kind: str, refused: str) -> None:
    c = campaign(refused=True)
    text = refused if kind == "html" else render_markdown(c).replace("\\", "")
    assert isinstance(c.verdict, Refusal)
    for reason in c.verdict.reasons:
        assert reason.code in text
        assert reason.remedy in text
    assert "One tenant only in this trace." in text
    assert "budget-512@x1 replicate 4: cut, not sealed" in text


def test_alike_reasons_share_a_line_and_none_is_lost() -> None:
    reasons = [Reason("gate", f"arm {arm}: FAIL: late ({arm}@x1/{i}/1)", "add a core") for arm in "ab" for i in range(3)]
    text = printed(campaign(refused=True, verdict=Refusal("t", (*reasons, Reason("gate", "no place", "other")))), verdict_only=True)
    assert "arm a: FAIL: late (a@x1/0/1, a@x1/1/1, a@x1/2/1)" in text
    assert "arm b: FAIL: late (b@x1/0/1, b@x1/1/1, b@x1/2/1)" in text
    assert text.count("-> add a core") == 1
    assert "no place" in text


def test_waivers_are_printed_on_a_ranking_too(ranked: str) -> None:
    assert "One tenant only in this trace." in ranked
    assert "One tenant only in this trace." in render_markdown(campaign())
    assert "One tenant only in this trace." in printed(campaign(), verdict_only=True)


def test_a_withheld_number_shows_its_reason_and_no_number() -> None:
    lines = [x for x in render_markdown(campaign()).splitlines() if x.startswith("| ttft\\_p999 ")]
    assert len(lines) == 2
    assert all("| withheld |  | 600 |" in x and "at least 1000 are needed" in x for x in lines)


def test_every_figure_carries_n_and_its_interval() -> None:
    text = render_markdown(campaign())
    (line,) = [x for x in text.splitlines() if x.startswith("| goodput | budget-8192")]
    assert "| 10.10 | \\[9.90, 10.30\\] | 610 |" in line
    assert "Per measured window W = 12 s. Intervals: 95 %, t over replicates, n=5 (replicate)." in text
    assert "### Request rates, req/s, over offered cohort (arrival in the measured window)" in text


def test_one_table_has_one_unit() -> None:
    slow = campaign()
    figure = dataclasses.replace(slow.cells[0].figures["ttft_p99"], value=12.5, interval=None)
    first = dataclasses.replace(slow.cells[0], figures=dict(slow.cells[0].figures) | {"ttft_p99": figure})
    text = render_markdown(dataclasses.replace(slow, cells=(first, slow.cells[1])))
    assert "### Times, s" in text
    assert "### Times, ms, over completed requests" not in text
    assert "### Times, ms, over gaps" in text, "gaps of milliseconds beside seconds would be rows of zeros"
    assert "| ttft\\_p99 | budget-8192\\@x1 | 0.41 |" in text


def test_outcomes_that_do_not_add_up_are_said_aloud() -> None:
    broken = Outcomes(200, dict.fromkeys(Outcome, 1))
    c = campaign()
    first = dataclasses.replace(c.cells[0], outcomes=broken)
    assert "do NOT add up in: budget-512" in render_markdown(dataclasses.replace(c, cells=(first,)))
    assert "NOT add up" not in render_markdown(c)
    assert outcomes(1).closes()


def test_provenance_names_licence_digest_and_every_seal() -> None:
    text = render_markdown(campaign())
    for word in ("CC-BY-4.0", "ab" * 32, "d" * 64, "4" * 64, "measurement\\_protocol", "Azure"):
        assert word in text


def test_a_campaign_without_runs_or_figures_still_renders() -> None:
    bare = campaign(refused=True, cells=(), comparisons=(), provenance={})
    assert "No ranking" in render_html(bare)
    assert "No ranking" in render_markdown(bare)
    empty = dataclasses.replace(cell("a", 0.0, fail=False), runs=(), figures={}, checks=(), outcomes=Outcomes(0, {}), coordinates={})
    assert "a@x1" in render_html(campaign(refused=True, cells=(empty,)))


def test_json_is_json_and_keeps_the_kind_of_verdict() -> None:
    for refused, kind in ((True, "refusal"), (False, "ranking")):
        document = json.loads(canonical_json(to_json(campaign(refused=refused))))
        assert document["verdict"]["kind"] == kind
        assert document["cells"][0]["figures"]["ttft_p99_offered"]["value"] == "inf"
        assert document["cells"][0]["figures"]["ttft_p999"]["value"] is None


def printed(c: CampaignAnalysis, *, verdict_only: bool = False) -> str:
    out = io.StringIO()
    render_terminal(c, Console(file=out, width=140, force_terminal=True, color_system=None), verdict_only=verdict_only)
    return out.getvalue()


def test_the_terminal_says_the_verdict_first_and_all_reasons() -> None:
    text = printed(campaign(refused=True))
    assert text.startswith("No ranking: goodput")
    assert "pin the revision in the manifest" in text
    assert "FAIL receive_lag in budget-512@x1 / replicate 3 (protects latency, goodput); reasons above" in text
    assert "10 of 10 analyzed runs sealed, 1 planned runs incomplete, campaign digest abababababababab" in text
    brief = printed(campaign(), verdict_only=True)
    assert "Ranking by goodput" in brief
    assert "Outcomes" not in brief


def test_two_arms_fit_a_screenful_when_all_is_well() -> None:
    assert len(printed(campaign()).splitlines()) < 80


def test_a_waived_gate_is_told_once_with_its_runs_counted() -> None:
    text = printed(campaign())
    assert text.count("UNKNOWN, waived starvation in 10 places (protects fairness)") == 1
    assert text.count("-> use a trace with clients") == 1


def test_a_missing_run_is_not_told_twice() -> None:
    gap = "a@x1 replicate 4: not run"
    c = campaign(refused=True, incomplete=(gap,), verdict=Refusal("t", (Reason("run_incomplete", gap, "resume"),)))
    assert printed(c).count(gap) == 1


def test_nothing_drives_the_terminal() -> None:
    text = printed(hostile(" ".join(HOSTILE)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[bold red]markup[/bold red]" in text.replace("\n", "")


@given(st.text())
def test_clean_text_is_one_printable_line(text: str) -> None:
    assert clean(text).isprintable()
    assert len(clean(text)) == len(text)


@given(st.text(st.characters(codec="utf-8")))
def test_escaped_markdown_has_nothing_bare_that_could_be_markup(text: str) -> None:
    safe = escape(clean(text))
    left = iter(safe)
    bare = [c for c in left if c != "\\" or not next(left, "")]  # a backslash takes the next character with it
    assert not set(bare) & set("`*_{}[]<>|!~$@")
    assert "http:" not in safe.lower()


def test_markdown_rows_keep_their_columns_whatever_the_names() -> None:
    text = render_markdown(hostile(" ".join(HOSTILE)))
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    tables = re.split(r"\n\n", text)
    for table in tables:
        rows = [len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines() if line.startswith("|")]
        assert len(set(rows)) <= 1
    assert len(widths) > 50
    assert "<script>" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234567.0, "1234567"), (12.345, "12.35"), (0.0031, "0.0031"), (9.2, "9.2"), (-0.5, "-0.5"), (1e-9, "1e-09"),
     (math.inf, "∞"), (None, "n/a"), (math.nan, "n/a")],
)  # fmt: skip
def test_numbers_read_well(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
def test_numbers_keep_three_digits_of_truth(value: float) -> None:
    assert math.isclose(float(number(value)), value, rel_tol=6e-3, abs_tol=1e-300)
