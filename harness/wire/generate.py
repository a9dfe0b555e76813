"""SGLang's own route, /generate: every event repeats the whole answer so far, so an event's tokens are what it has more than the last."""

from __future__ import annotations

from typing import Any

import orjson

from harness.wire.contract import Ask, Decoder
from harness.wire.decode import BodyDecoder, StreamDecoder
from harness.wire.openai import sendable_prompt
from harness.wire.payload import Payload, Usage, count, read_error, short_error, short_reason, status_of


class GenerateProtocol:
    """Posts token ids or text. A body grows with the square of the answer's length, since each event repeats all before it."""

    name = "generate"
    path = "/generate"
    cumulative = True

    def encode(self, ask: Ask) -> bytes:
        """Encode a streaming request as JSON; the same ask gives the same bytes. UsageError for an empty prompt.

        The route serves one model and takes no name of one. Limits that a request may declare mean nothing to it and are not sent.
        """
        prompt = sendable_prompt(ask)
        sampling: dict[str, Any] = {"temperature": ask.temperature, "sampling_seed": ask.seed}
        # Said even when nothing is declared: left out, the server stops at 128 tokens; null is as long as the context allows.
        sampling["max_new_tokens"] = ask.max_tokens
        if ask.ignore_eos:
            sampling["ignore_eos"] = True
        fields: dict[str, Any] = {"text" if isinstance(prompt, str) else "input_ids": prompt, "sampling_params": sampling}
        if ask.priority is not None:
            fields["priority"] = ask.priority
        fields["stream"] = True
        return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)

    def decoder(self, *, stream: bool) -> Decoder:
        """Make a decoder for one response."""
        read = CumulativeReader()
        return StreamDecoder(read=read) if stream else BodyDecoder(read=read)


class CumulativeReader:
    """Reads the objects of one response in order.

    Tokens are the growth of ``output_ids``; where a server sends none, that of ``meta_info.completion_tokens``. A list that does not begin
    with the ids of the event before is malformed, and so is one shorter than the count beside it (it may be longer: the server counts
    first and writes later). Both are how a server looks that was told to stream increments, whose repeated token would count as none.
    """

    def __init__(self) -> None:
        self._ids: dict[int, list[object]] = {}
        self._counted: dict[int, int] = {}

    def __call__(self, value: object) -> Payload | None:
        """Read one object; None when it is neither an answer nor an error."""
        if not isinstance(value, dict):
            return None
        failed = read_error(value)
        if failed is not None:
            return failed
        meta = value.get("meta_info")
        if not isinstance(meta, dict):
            return None
        number = count(value.get("index")) or 0
        usage = Usage(count(meta.get("prompt_tokens")), count(meta.get("completion_tokens")), count(meta.get("cached_tokens")))
        payload = Payload(has_choices=True, has_text=bool(value.get("text")), choice=number, usage=usage)
        ids = value.get("output_ids")
        payload.malformed = self._contradiction(number, ids if isinstance(ids, list) else None, usage.completion)
        if isinstance(ids, list):
            payload.ids = len(ids) - len(self._ids.get(number, ()))
            self._ids[number] = ids
        self._counted[number] = max(usage.completion or 0, self._counted.get(number, 0))
        _read_end(payload, meta.get("finish_reason"))
        return payload

    def _contradiction(self, number: int, ids: list[object] | None, counted: int | None) -> str | None:
        if ids is None:
            fell = counted is not None and counted < self._counted.get(number, 0)
            return "completion_tokens fell from one event to the next" if fell else None
        before = self._ids.get(number, [])
        if ids[: len(before)] != before:
            return "output_ids do not begin with those of the event before: the stream is not cumulative"
        if counted is not None and len(ids) < counted:
            return f"output_ids hold {len(ids)} of {counted} completion_tokens: the stream is not cumulative"
        return None


def _read_end(payload: Payload, reason: object) -> None:
    """``finish_reason`` is an object here, and an abort (a full queue, too long an input) comes as one inside a 200 stream."""
    if not isinstance(reason, dict):
        payload.finish_reason = short_reason(reason) if isinstance(reason, str) else None
        return
    kind = reason.get("type")
    payload.finish_reason = short_reason(kind) if isinstance(kind, str) else None
    if kind == "abort":
        message = reason.get("message")
        payload.aborted = short_error(f"abort: {message}" if isinstance(message, str) else "abort")
        payload.error_status = status_of(reason.get("status_code"))
