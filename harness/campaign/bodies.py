"""The bytes of every request, encoded before the run so that nothing is encoded while it is measured."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import UsageError
from harness.manifest import PlannedRun
from harness.reference.table import NO_LIMIT
from harness.runtimes.contract import Target
from harness.simulate.offered import declared_limits
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from workloads.schedule import Schedule
from workloads.seeds import derive


@dataclass(frozen=True, slots=True)
class Bodies:
    """Body bytes by request id. ``digest``: sha256 over all of them, so that two people can compare what they sent."""

    bodies: list[bytes]
    digest: str


def encode_bodies(schedule: Schedule, run: PlannedRun, target: Target, *, shares: int = 1) -> Bodies:
    """Encode every request, in ``shares`` processes; the bytes are the same for any number of them, and whichever ends first.

    Raises UsageError ``prompts_need_text`` or ``id_out_of_vocabulary`` and whatever making a prompt raises.
    """
    limits = declared_limits(schedule, run.slo, run.slo_classes) if target.reads_limits else None
    plan = _Encoding(
        schedule,
        run.workload.api,
        run.workload.prompts.source,
        run.workload.seed,
        target.model,
        target.token_ids,
        limits,
        target.vocab_size,
    )
    count = len(schedule)
    if shares <= 1 or count < shares:
        bodies = plan.encode(range(count))
    else:
        # Spawned, not forked: a forked child inherits the parent's threads' locks and its hash seed, and neither should matter.
        with ProcessPoolExecutor(shares, mp_context=multiprocessing.get_context("spawn")) as pool:
            parts = [pool.submit(plan.encode, range(k * count // shares, (k + 1) * count // shares)) for k in range(shares)]
            bodies = [body for part in parts for body in part.result()]
    return Bodies(bodies, bodies_digest(bodies))


def bodies_digest(bodies: Iterable[bytes]) -> str:
    """Sha256 over the bodies in request order, each after its length (8 bytes, little-endian)."""
    digest = hashlib.sha256()
    for body in bodies:
        digest.update(len(body).to_bytes(8, "little"))
        digest.update(body)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Encoding:
    """What encoding needs of a run, and nothing else: it travels to other processes."""

    schedule: Schedule
    api: str
    source: str
    seed: int
    model: str
    token_ids: bool
    limits: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
    vocab_size: int = 0
    """Ids below it may be sent; 0: the server did not say."""

    def encode(self, requests: range) -> list[bytes]:
        """Bodies of these requests (row numbers of the schedule), in their order; UsageError ``id_out_of_vocabulary``."""
        protocol = PROTOCOLS[self.api]
        # Copied to their size: encoders shrink a buffer that grew by doubling, and the tails they give back fit no later buffer, so that
        # the bodies of a run would hold up to four times their bytes.
        return [bytes(memoryview(protocol.encode(self._ask(i)))) for i in requests]

    def _ask(self, i: int) -> Ask:
        schedule, told = self.schedule, int(self.schedule.max_tokens[i])
        as_text = self.api == "chat" or self.source != "random-ids" or not self.token_ids
        return Ask(
            model=self.model,
            prompt=self._text(i) if as_text else self._ids(i),
            max_tokens=told if told >= 0 else None,
            ignore_eos=schedule.ignore_eos,
            # 31 bits: engines take the seed as a signed 32- or 64-bit number.
            seed=derive(self.seed, "sampling", i) >> 32,
            priority=None if schedule.priority is None else int(schedule.priority[i]),
            ttft_ns=self._limit(0, i),
            tbt_ns=self._limit(1, i),
        )

    def _limit(self, which: int, i: int) -> int | None:
        declared = NO_LIMIT if self.limits is None else int(self.limits[which][i])
        return None if declared == NO_LIMIT else declared

    def _ids(self, i: int) -> npt.NDArray[np.int32]:
        """Ids of a prompt as the server will read it, held against the model's vocabulary: past here they are bytes."""
        ids = self.schedule.prompts.ids(i)
        outside = ids[(ids < 0) | (ids >= self.vocab_size)] if self.vocab_size else ids[:0]
        if outside.size:
            raise UsageError.single(
                "id_out_of_vocabulary",
                f"request {i}: token id {outside[0]} is not in 0..{self.vocab_size - 1}, the vocabulary of {self.model}: vLLM answers "
                "with an error, SGLang dies, and the run would measure that; no load was sent",
                "name the tokenizer of the served model, or restore the model's config.json",
            )
        return ids

    def _text(self, i: int) -> str:
        text = self.schedule.prompts.text(i)
        self._ids(i)
        if text is None:
            raise UsageError.single(
                "prompts_need_text",
                "prompts.source=random-ids with an interface that takes text only: random ids have no text that encodes back to them",
                "set prompts.source to text",
            )
        return text
