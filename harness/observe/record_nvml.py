"""Record what this host's driver library answers to every call we make: ``python -m harness.observe.record_nvml FILE [SAMPLES]``.

Run on a host with accelerators, with something computing on them. The file has the form of those that the tests replay. Unique ids and
process ids are replaced: a recording is about a kind of machine, not about one.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from harness.observe.gpu import gpu_facts
from harness.observe.gpu_watch import GpuWatch

SAMPLES = 8
PERIOD_S = 0.25


class Recorder:
    """pynvml with a memory: passes every call on and keeps it with its answer. ``library`` is what it passes them on to."""

    def __init__(self, library: Any = pynvml) -> None:
        self.calls: list[dict[str, Any]] = []
        self._library = library
        self._devices: list[Any] = []
        self._processes: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        return self._wrapped(name, found) if name.startswith("nvml") and callable(found) else found

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any) -> Any:
            entry: dict[str, Any] = {"call": name, "args": [self._plain(a) for a in args]}
            try:
                value = call(*args)
            except self._library.NVMLError as error:
                self.calls.append(entry | {"raises": error.value})
                raise
            if name == "nvmlDeviceGetHandleByIndex" and len(self._devices) == args[0]:
                self._devices.append(value)
            if name not in ("nvmlInit", "nvmlShutdown"):
                self.calls.append(entry | {"returns": self._masked(name, entry["args"], self._plain(value))})
            return value

        return made

    def _plain(self, value: Any) -> Any:
        """The value as JSON can hold it; a device by its index."""
        for index, device in enumerate(self._devices):
            if value is device:
                return {"device": index}
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        if isinstance(value, list | tuple):
            return [self._plain(v) for v in value]
        if value is None or isinstance(value, int | float | str):
            return value
        fields = [f[0] for f in getattr(value, "_fields_", ())] or list(vars(value))
        return {name: self._plain(getattr(value, name)) for name in fields}

    def _masked(self, name: str, args: list[Any], value: Any) -> Any:
        if name == "nvmlDeviceGetUUID":
            return f"GPU-00000000-0000-0000-0000-{args[0]['device']:012d}"
        if name == "nvmlDeviceGetComputeRunningProcesses":
            return [process | {"pid": self._processes.setdefault(process["pid"], 1000 * (1 + len(self._processes)))} for process in value]
        return value


def record(library: Any = pynvml, samples: int = SAMPLES, wait: Callable[[float], None] = time.sleep) -> list[dict[str, Any]]:
    """Make every call of the facts and of some samples; return the calls. Equal answers in a row are kept once."""
    recorder = Recorder(library)
    gpu_facts((), recorder)
    watch = GpuWatch(list, lambda _reason: None, recorder)
    for _ in range(samples):
        watch.rows()
        wait(PERIOD_S)
    watch.close()
    return _without_repeats(recorder.calls)


def _without_repeats(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last: dict[str, dict[str, Any]] = {}
    kept = []
    for call in calls:
        key = json.dumps([call["call"], call["args"]])
        if last.get(key) != call:
            kept.append(call)
        last[key] = call
    return kept


def main(argv: list[str]) -> int:
    """Write the file; exit code 2 on wrong usage, 3 where no device answers."""
    if len(argv) not in (1, 2) or argv[0].startswith("-") or not all(text.isdecimal() for text in argv[1:]):
        sys.stderr.write("usage: python -m harness.observe.record_nvml FILE [SAMPLES]\n")
        return 2
    calls = record(samples=int(argv[1]) if len(argv) > 1 else SAMPLES)
    if not any(c["call"] == "nvmlDeviceGetHandleByIndex" for c in calls):
        why = pynvml.NVMLError(calls[-1]["raises"]) if calls and "raises" in calls[-1] else "the driver lists no device"
        sys.stderr.write(f"no accelerator answered ({why}), so nothing was written; run it on a host whose driver is loaded\n")
        return 3
    page = {"made": "recorded", "library": f"nvidia-ml-py {importlib.metadata.version('nvidia-ml-py')}", "calls": calls}
    Path(argv[0]).write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
