"""Reader servegen: what is drawn has the published rate, shape and lengths, client by client, and nothing else moves it."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.schedule import Trace
from workloads.traces import get_reader, guess_format, read_trace
from workloads.traces.archive import read_members
from workloads.traces.servegen_draw import MAX_ROWS, _window
from workloads.traces.servegen_files import Client, lengths_of, read_clients, read_lengths
from workloads.traces.servegen_profile import profile

T = TypeVar("T")
IDLE = "{},0,0,,0,0"


def gamma_row(start: int, rate: float, shape: float, off: float = 1.0) -> str:
    """A published row; ``off`` is how far its scale misses the rate."""
    return f"{start},{rate},{shape**-0.5},Gamma,{shape},{off / (rate * shape)}"


def weibull_row(start: int, rate: float, shape: float) -> str:
    return f"{start},{rate},1.7,Weibull,{shape},{1 / (rate * math.gamma(1 + 1 / shape))}"


def tar(path: Path, members: dict[str, str | bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            raw = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


def histograms(*windows: tuple[int, str, str]) -> str:
    return json.dumps({str(start): {"input_tokens": tokens_in, "output_tokens": tokens_out} for start, tokens_in, tokens_out in windows})


LENGTHS = histograms((0, "{10: 0.25, 20: 0.75}", "{1: 1.0}"), (21600, "{}", "{}"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients with histograms, one without; the second's windows: gamma, idle, Weibull."""
    tar(
        tmp_path / "x_traces.tar.gz",
        {
            "data/m/chunk-0-trace.csv": "\r\n".join([gamma_row(0, 2, 0.5), gamma_row(600, 2, 0.5), gamma_row(1200, 2, 0.5)]) + "\r\n",
            "data/m/chunk-7-trace.csv": "\r\n".join([gamma_row(0, 1, 4), IDLE.format(600), weibull_row(1200, 3, 0.7)]) + "\r\n",
            "data/m/chunk-10-trace.csv": "\n".join([gamma_row(0, 1, 1), gamma_row(600, 1, 1), gamma_row(1200, 1, 1)]) + "\n",
            "data/m/README": "not a table",
        },
    )
    tar(
        tmp_path / "servegen_datasets.tar.gz",
        {
            "data/m/chunk-0-dataset.json": LENGTHS,
            "data/m/chunk-7-dataset.json": histograms((0, "{500: 1}", "{3: 0.5, 4: 0.5}")),
            "data/other/chunk-10-dataset.json": LENGTHS,
        },
    )
    return tmp_path


def draw(folder: Path, seed: int = 1, **options: Any) -> Trace:
    return read_trace("servegen", folder / "x_traces.tar.gz", options, seed)


def rows_of(trace: Trace, client: str) -> list[tuple[int, int, int]]:
    assert trace.client is not None
    mine = np.array(trace.client.values()) == client
    return list(zip(trace.arrival_ns[mine].tolist(), trace.input_tokens[mine].tolist(), trace.output_tokens[mine].tolist(), strict=True))


def outcome(attempt: Callable[[], T]) -> T | UsageError:
    try:
        return attempt()
    except UsageError as error:
        return error


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        draw(folder, **options)
    return str(caught.value)


def test_rows_are_drawn_by_client_and_say_so(folder: Path) -> None:
    trace = draw(folder, clients=[0, 7])
    assert get_reader("servegen").info.drawn
    assert trace.client is not None
    assert trace.client.names == ("0", "7")
    assert (np.diff(trace.arrival_ns) >= 0).all()
    assert 0 <= trace.arrival_ns[0] <= trace.arrival_ns[-1] < 1800 * 10**9
    assert {i for _, i, _ in rows_of(trace, "0")} == {10, 20}
    assert {(i, o) for _, i, o in rows_of(trace, "7")} == {(500, 3), (500, 4)}
    assert any("none was logged" in note for note in trace.notes)
    assert any("servegen_datasets.tar.gz (sha256" in note for note in trace.notes)


def test_an_idle_window_is_silent(folder: Path) -> None:
    times = [t for t, _, _ in rows_of(draw(folder, clients=[7]), "7")]
    assert not [t for t in times if 600 * 10**9 <= t < 1200 * 10**9]
    assert [t for t in times if t >= 1200 * 10**9]


def test_the_same_seed_draws_the_same_and_another_does_not(folder: Path) -> None:
    assert rows_of(draw(folder, clients=[0]), "0") == rows_of(draw(folder, clients=[0]), "0")
    assert rows_of(draw(folder, clients=[0]), "0") != rows_of(draw(folder, seed=2, clients=[0]), "0")


@pytest.mark.parametrize("scale", [{}, {"factor": 0.5}, {"rate": 2.0}])
def test_a_clients_rows_do_not_depend_on_who_else_is_chosen(folder: Path, scale: dict[str, float]) -> None:
    alone = rows_of(draw(folder, clients=[7], **scale), "7")
    assert alone == rows_of(draw(folder, clients=[0, 7], **scale), "7")
    assert alone == rows_of(draw(folder, lengths_of=0, **scale), "7")


@pytest.mark.parametrize("scale", [{}, {"factor": 0.5}, {"rate": 2.0}])
def test_a_longer_window_extends_the_same_draw(folder: Path, scale: dict[str, float]) -> None:
    short, long = (rows_of(draw(folder, clients=[0], stop_s=stop, **scale), "0") for stop in (700, 1800))
    assert short == [row for row in long if row[0] < 700 * 10**9]
    late = rows_of(draw(folder, clients=[0], start_s=650, **scale), "0")
    assert late == [(t - 650 * 10**9, i, o) for t, i, o in long if t >= 650 * 10**9]


def client_of(row: str, number: int = 3) -> Client:
    start, rate, cv, pattern, shape, _ = row.split(",")
    code = {"Gamma": 1, "Weibull": 2}[pattern]
    column = [np.array([float(value)]) for value in (rate, cv, shape)]
    return Client(number, "m", np.array([int(start)]), column[0], column[1], np.array([code]), column[2])


@pytest.mark.parametrize("row", [gamma_row(0, 0.5, 0.2), gamma_row(0, 0.5, 4), weibull_row(0, 0.5, 0.5), weibull_row(0, 0.5, 1.8)])
def test_the_mean_count_of_a_window_is_its_rate_and_nothing_is_rescaled(row: str) -> None:
    counts = np.array([len(_window(client_of(row), 0, 1.0, seed)) for seed in range(400)])
    # Five standard errors: wrong once in a million seeds sets; the seeds are fixed, so the test cannot flicker.
    assert abs(counts.mean() - 300) < 5 * counts.std() / math.sqrt(len(counts))
    assert counts.std() > 0  # a draw rescaled to its count would not vary


@pytest.mark.parametrize(
    ("row", "cv"), [(gamma_row(0, 40, 0.25), 2.0), (weibull_row(0, 40, 0.5), math.sqrt(5)), (gamma_row(0, 40, 4), 0.5)]
)
def test_gaps_have_the_published_shape_whatever_the_published_scale(row: str, cv: float) -> None:
    gaps = np.concatenate([np.diff(_window(client_of(row), 0, 1.0, seed)) for seed in range(4)])
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    assert 1e9 / gaps.mean() == pytest.approx(40, rel=0.1)


def test_a_published_scale_that_misses_the_rate_is_set_by_the_rate() -> None:
    right, wrong = (len(_window(client_of(gamma_row(0, 20, 1, off)), 0, 1.0, 5)) for off in (1.0, 1.7))
    assert right == wrong


def test_factor_scales_rates_and_keeps_the_shape() -> None:
    gaps = np.concatenate([np.diff(_window(client_of(gamma_row(0, 400, 0.25)), 0, 0.1, seed)) for seed in range(4)])
    assert 1e9 / gaps.mean() == pytest.approx(40, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.1)


def test_rate_refers_to_the_whole_file(folder: Path) -> None:
    whole = (3 * 1200 + 600 + 1800 + 1800) / 1800  # requests that the three tables imply, by second
    assert rows_of(draw(folder, clients=[0], rate=whole / 2), "0") == rows_of(draw(folder, clients=[0], factor=0.5), "0")
    assert "two scales" in refused(folder, clients=[0], rate=1, factor=1)


def test_lengths_follow_their_histogram(folder: Path) -> None:
    lengths = np.array([i for _, i, _ in rows_of(draw(folder, clients=[0]), "0")])
    assert (lengths == 20).mean() == pytest.approx(0.75, abs=0.05)


def test_clients_without_lengths_are_refused_until_a_stand_in_is_named(folder: Path) -> None:
    message = refused(folder)
    assert "clients without histograms of lengths: 10" in message
    assert "choose clients among 0, 7" in message
    trace = draw(folder, **{"lengths-of": 7})
    assert {i for _, i, _ in rows_of(trace, "10")} == {500}
    assert {i for _, i, _ in rows_of(trace, "0")} == {10, 20}
    assert any("1 of 3 clients have no histograms; their lengths are client 7's" in note for note in trace.notes)
    assert "neither has lengths-of=10" in refused(folder, lengths_of=10)
    assert {(i, o) for _, i, o in rows_of(draw(folder, fixed_lengths=(9, 5)), "10")} == {(9, 5)}
    assert "two stand-ins" in refused(folder, fixed_lengths=(9, 5), lengths_of=7)
    assert "from 1 to" in refused(folder, fixed_lengths=(0, 5))


def test_requests_without_a_histogram_in_their_window_are_counted(tmp_path: Path) -> None:
    tar(tmp_path / "x_traces.tar.gz", {"m/chunk-0-trace.csv": gamma_row(21000, 1, 1) + "\n" + gamma_row(21600, 1, 1)})
    tar(tmp_path / "servegen_datasets.tar.gz", {"m/chunk-0-dataset.json": LENGTHS})
    trace = draw(tmp_path)
    assert trace.arrival_ns.max() < 21_600 * 10**9
    assert trace.skipped["no length histogram in this window"] == pytest.approx(600, abs=150)


def test_more_rows_than_can_be_meant_are_refused_with_their_number_and_a_factor_that_fits(tmp_path: Path) -> None:
    tar(tmp_path / "x_traces.tar.gz", {"m/chunk-0-trace.csv": gamma_row(0, 100_000, 1)})
    message = refused(tmp_path, fixed_lengths=(1, 1))
    assert "60,000,000 rows at factor 1" in message
    assert f"{MAX_ROWS:,}" in message
    assert "factor (e.g. 0.03)" in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clients": [0, 4]}, "clients=[4]"),
        ({"start_s": 900, "stop_s": 800}, "not a window"),
        ({"stop_s": 5000}, "within the file's 1800 s"),
        ({"clients": [7], "start_s": 600, "stop_s": 1200}, "nothing was drawn"),
        ({"datasets": "../x"}, "without folders"),
        ({"datasets": "absent.tar.gz", "clients": [0]}, "cannot be read"),
        ({"datasets_sha256": "0" * 64}, "the file of histograms has"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_options_that_cannot_be_met_are_refused(folder: Path, options: dict[str, Any], said: str) -> None:
    assert said in refused(folder, **options)


def test_two_archives_of_histograms_need_a_name(folder: Path) -> None:
    tar(folder / "servegen_datasets_more.tar.gz", {})
    assert "several archives" in refused(folder, clients=[0])
    assert len(draw(folder, clients=[0], datasets="servegen_datasets.tar.gz"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,1,1,Gamma,1", "not `window"),
        ("0,1,1,Pareto,1,1", "not `window"),
        ("0,1,1,Gamma,-1,1", "not `window"),
        ("0,1,1,Gamma,nan,1", "not `window"),
        ("0,1,0,,0,0", "without a pattern"),
        ("0,0,0,Gamma,0,0", "above 0"),
        ("0,1,1,Weibull,0.01,1", "shape is in [0.05"),
        ("0,1,1,Gamma,4,1", "columns are not where they belong"),
        ("7,0,0,,0,0", "multiples of 600"),
        ("600,0,0,,0,0\n1800,0,0,,0,0", "follows 600"),
        ("", "not `window"),
    ],
)
def test_a_row_that_is_no_process_is_refused_with_its_line(tmp_path: Path, row: str, said: str) -> None:
    path = tar(tmp_path / "x_traces.tar.gz", {"m/chunk-3-trace.csv": row})
    with pytest.raises(UsageError) as caught:
        read_clients(path)
    assert said in str(caught.value)
    assert caught.value.problems[0].where.startswith("m/chunk-3-trace.csv:")


def test_faults_of_all_members_are_told_up_to_a_screenful(tmp_path: Path) -> None:
    path = tar(tmp_path / "x_traces.tar.gz", {f"m/chunk-{n}-trace.csv": "bad\n" for n in range(30)})
    with pytest.raises(UsageError) as caught:
        read_clients(path)
    assert len(caught.value.problems) == 21
    assert "problems_not_listed=10" in caught.value.problems[-1].what


@pytest.mark.parametrize("names", [[], ["a/chunk-1-trace.csv", "b/chunk-1-trace.csv"]])
def test_an_archive_holds_exactly_one_model(tmp_path: Path, names: list[str]) -> None:
    path = tar(tmp_path / "x_traces.tar.gz", dict.fromkeys(names, IDLE.format(0)))
    with pytest.raises(UsageError, match="exactly one model"):
        read_clients(path)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "{1: __import__('os').getpid()}",
        "{1: 0.5}",
        "{1.5: 1.0}",
        "{-1: 1}",
        "[1]",
        "{1: 1e999}",
        "{99999999: 1}",
        "{1: 1" + ",1: 1" * 3,
        "{" * 5000,
        "{1: " + "9" * 5000 + "}",
    ],
)
def test_a_distribution_is_parsed_as_numbers_only(text: str) -> None:
    held = lengths_of("chunk-1-dataset.json", histograms((0, text, "{}")).encode())
    with pytest.raises(UsageError) as caught:
        held.at(0, "input_tokens")
    assert caught.value.problems[0].code == "trace.histogram"
    assert "chunk-1-dataset.json: window 0: input_tokens" in caught.value.problems[0].where


def test_a_window_without_a_distribution_has_none() -> None:
    held = lengths_of("d", LENGTHS.encode())
    assert held.at(0, "input_tokens") is not None
    assert held.at(21_600, "input_tokens") is None
    assert held.at(43_200, "input_tokens") is None
    assert held.at(0, "reason_ratio") is None


def test_the_last_quantile_has_a_length() -> None:
    held = lengths_of("d", histograms((0, "{1: 0.1, 2: 0.1, 3: 0.1, 5: 0.7, 9: 0.0}", "{}")).encode()).at(0, "input_tokens")
    assert held is not None
    assert held.draw(np.array([0.0, 0.0999, 0.1, 0.2999999, np.nextafter(1, 0)])).tolist() == [1, 1, 2, 3, 5]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"0": 1}', b'{"x": {}}', b'{"0": {"input_tokens": 5}}', b"\xff", b"[" * 10**5])
def test_histograms_that_are_no_windows_of_strings_are_refused(raw: bytes) -> None:
    with pytest.raises(UsageError, match="not an object of windows"):
        lengths_of("d", raw)


def test_members_are_read_without_links_holes_or_repeats(tmp_path: Path) -> None:
    path, pattern = tmp_path / "a.tar", re.compile(r".*\.csv")
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("x.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(UsageError, match="not a plain file"):
        read_members(path, pattern)
    with tarfile.open(path, "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("../../x.csv"))
    with pytest.raises(UsageError, match="twice"):
        read_members(path, pattern)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar"]


def test_an_archive_that_unpacks_to_more_than_a_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a.tar.gz", {"chunk-1-trace.csv": b"0" * 10**6})
    monkeypatch.setattr("workloads.traces.archive.MAX_BYTES", 10**5)
    with pytest.raises(UsageError, match="larger than any collection"):
        read_clients(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.binary(max_size=700), st.integers(0, 900))
def test_any_bytes_end_in_clients_or_in_problems(tmp_path: Path, noise: bytes, at: int) -> None:
    path = tar(tmp_path / "a.tar", {"m/chunk-1-trace.csv": gamma_row(0, 1, 1)})
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw[at : at + len(noise)] = noise
    path.write_bytes(bytes(raw[: 600 + at]) if at % 3 == 0 else bytes(raw))
    result = outcome(lambda: read_clients(path)[1])
    if isinstance(result, UsageError):
        assert all(problem.code.startswith("trace.") for problem in result.problems)
    else:
        assert all(len(client.rate) for client in result.values())


@given(st.text("0123456789.eE+-:, {}\n_", max_size=40) | st.text(max_size=20))
def test_any_text_is_a_histogram_none_or_a_problem(text: str) -> None:
    held = lengths_of("d", json.dumps({"0": {"input_tokens": text}}).encode())
    result = outcome(lambda: held.at(0, "input_tokens"))
    if isinstance(result, UsageError):
        assert result.problems[0].code == "trace.histogram"
    else:
        assert result is None or (result.cumulative[-1] == 1 and (np.diff(result.values) > 0).all())


def test_profile_tells_what_is_published_before_anything_is_drawn(folder: Path) -> None:
    facts = profile(folder / "x_traces.tar.gz")
    assert facts["clients"] == 3
    assert facts["patterns"] == {"": 1, "Gamma": 7, "Weibull": 1}
    assert facts["implied_requests"] == 7800.0  # 3 x 1200 + 600 + 1800 + 1800
    assert facts["top5_clients"] == [["chunk-0-trace.csv", 0.4615], ["chunk-7-trace.csv", 0.3077], ["chunk-10-trace.csv", 0.2308]]
    files = profile(folder / "servegen_datasets.tar.gz")["files"]
    assert isinstance(files, dict)
    assert files["data/m/chunk-0-dataset.json"]["empty_pdfs"] == 2


def test_the_format_is_guessed_from_the_first_members_name(folder: Path) -> None:
    assert guess_format(folder / "x_traces.tar.gz") == "servegen"
    assert guess_format(folder / "servegen_datasets.tar.gz") == "servegen"


def test_a_probability_that_no_float_holds_is_profiled_as_unsound(tmp_path: Path) -> None:
    path = tar(tmp_path / "d.tar.gz", {"m/chunk-1-dataset.json": histograms((0, "{1: %s}" % ("9" * 400), "{1: 1.0}"))})
    assert profile(path)["files"]["m/chunk-1-dataset.json"]["pdfs_not_summing_to_1"] == 1  # type: ignore[index]  # a tree of plain values


def test_two_members_of_histograms_for_one_client_are_refused(tmp_path: Path) -> None:
    path = tar(tmp_path / "d.tar.gz", {"m/chunk-1-dataset.json": LENGTHS, "m/chunk-01-dataset.json": LENGTHS})
    with pytest.raises(UsageError) as caught:
        read_lengths(path, "m")
    assert [problem.code for problem in caught.value.problems] == ["trace.duplicate"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_archive_larger_than_any_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "large.tar"
    path.write_bytes(pack(bytes(4096)))
    monkeypatch.setattr("workloads.traces.archive.MAX_BYTES", 1000)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("read whole"))
    with pytest.raises(UsageError, match="bytes>1000"):
        read_members(path, re.compile("x"))
