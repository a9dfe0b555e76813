"""A prefix cache under a whole campaign: what later turns find of earlier ones, and what analysis says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_workload_campaigns import assert_sound, checks, columns, digest, manifest, run, the_record

pytestmark = pytest.mark.e2e

ARM = "{max-num-seqs: 16, cost-base: 4ms, prefix-cache-tokens: %d, prefix-block: 16}"


def chats(folder: Path, store: int) -> Path:
    """Trees of chats, each turn of which comes after the one it continues has ended. Clients close after the last wanted token."""
    return manifest(
        folder, "chats", f"trace: {{format: qwen-bailian, name: chats.jsonl, sha256: {digest('chats.jsonl')}}}", "loop: partly_open",
        "sessions: {think-unknown: 150ms, history: carry}", "prompts: {source: random-ids, sharing: as-trace}",
        "output-length: {control: client_stop, max-tokens: 256}", arm=ARM % store,
    )  # fmt: skip


def test_a_turn_finds_the_blocks_of_the_one_it_continues(tmp_path: Path) -> None:
    campaign = run(chats(tmp_path, 1_000_000))
    planned, came = columns(the_record(campaign))
    found = 0
    for plan, row in zip(planned, came, strict=True):
        if row["end_kind"] not in ("complete", "client_stop"):
            continue
        for before in plan["after"] or ():
            least = min(planned[before]["input_tokens"], plan["input_tokens"] - 1) // 16 * 16
            assert row["usage_cached_tokens"] >= least
            found += 1
        assert row["usage_cached_tokens"] % 16 == 0
    assert found >= 10
    assert_sound(campaign)
    judged = checks(campaign)["prefix_realised"]
    assert "(usage)" in judged.reason
    assert 0 < judged.measured["cached"]["value"] <= judged.measured["possible"]["value"]


def test_a_store_without_room_for_two_blocks_realises_little(tmp_path: Path) -> None:
    campaign = run(chats(tmp_path, 16))
    _, came = columns(the_record(campaign))
    cached = {row["usage_cached_tokens"] for row in came if row["end_kind"] == "client_stop"}
    assert cached <= {0, 16}
    assert_sound(campaign)
