"""Launch prefixes: how the user's own configuration says that a server is started, where our command line alone does not do.

``launch.toml`` in the configuration folder, one table a name. A manifest never names one: what can execute is the user's alone (DESIGN 4).
Words are lists and go to no shell of ours; placeholders are ``{port}``, ``{workdir}`` and ``{name}`` (unique for each start).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import HostError, Problem, UsageError
from harness.runtimes.contract import Command
from harness.runtimes.places import config_dir
from harness.runtimes.ports import HOST

PLACEHOLDERS = ("port", "workdir", "name")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MASK = "[masked]"

_BRACE = re.compile(r"\{([^{}]*)\}|[{}]")
_SECRET = re.compile(r"(?:^|[_.-])(?:TOKEN|KEY|APIKEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|BEARER)(?:$|[_.-])", re.IGNORECASE)
_OF_THE_HOST = frozenset({"HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "PATH"})
"""Variables that mean something on the machine they come from only."""

Word = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]


class Launch(BaseModel):
    """One entry of ``launch.toml``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=lambda name: name.replace("_", "-"))

    name: str = Field(exclude=True)
    prefix: Annotated[tuple[Word, ...], Field(min_length=1, strict=False)]
    where: Literal["same-host", "other-host"]
    stop: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    """Run when the server is to end, for what our signals do not reach (``docker stop {name}``)."""
    url_host: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,252}$")] = HOST
    """Where the client finds it; other than the loopback, the server is told to listen there."""
    env: Literal["inherited", "argv"] = "inherited"
    """``argv``: the server's variables travel as words of ``env``, because the prefix hands no environment on (docker, ssh)."""
    keep_env: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    """Variables of ours that the prefix needs: names, or ``SLURM_*``."""
    files: Literal["same", "other"] | None = None
    """Whether program and model lie there as they do here; default: on the same host."""

    @property
    def same_files(self) -> bool:
        """What is read from files of this machine holds for the server too."""
        return self.files == "same" or (self.files is None and self.where == "same-host")

    @property
    def label(self) -> str:
        """The coordinate: program and digest of the whole entry without its name and its secrets."""
        shown = self.model_dump_json(include={"where", "url_host", "env", "keep_env", "files"})
        text = "\0".join([*masked(self.prefix), "", *masked(self.stop), shown])
        return f"{Path(self.prefix[0]).name} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """``words`` for showing: values that look like secrets are masked, in ``NAME=value`` and after an option so named."""
    shown: list[str] = []
    hide = False
    for word in words:
        name, equals, _value = word.partition("=")
        secret = bool(_SECRET.search(name.lstrip("-")))
        shown.append(MASK if hide else f"{name}={MASK}" if equals and secret else word)
        hide = secret and not equals and name.startswith("-")
    return tuple(shown)


def secrets(words: Sequence[str]) -> tuple[str, ...]:
    """What ``masked`` hides, to be kept out of a shown log too."""
    return tuple(
        word if shown == MASK else word.partition("=")[2] for word, shown in zip(words, masked(words), strict=True) if word != shown
    )


def read_launches() -> dict[str, Launch]:
    """Entries of the user's ``launch.toml``, {} when there is none.

    Raises HostError ``launch_exposed`` when others can read or write it, UsageError ``bad_launch`` with everything wrong in it.
    """
    path = config_dir() / "launch.toml"
    try:
        mode = path.stat().st_mode
    except OSError:
        return {}
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        what = f"{path} has mode {stat.S_IMODE(mode):o}: what it says is executed, and others can read or change it"
        raise HostError.single("launch_exposed", what, f"chmod 600 {path}")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as bad:
        raise UsageError.single("bad_launch", f"{path}: {bad}", 'write [NAME], prefix = ["..."] and where = "same-host"') from bad
    found, problems = {}, []
    for name, table in tables.items():
        made = _entry(name, table)
        if isinstance(made, Launch):
            found[name] = made
        else:
            problems += made
    if problems:
        raise UsageError(*problems)
    return found


def _entry(name: str, table: object) -> Launch | list[Problem]:
    keys = ", ".join(field.alias or key for key, field in Launch.model_fields.items() if key != "name")
    if not isinstance(table, Mapping) or "name" in table:
        return [Problem("bad_launch", f"launch.toml: {name} is no table of {keys}", f'write [{name}] and prefix = ["..."]')]
    try:
        launch = Launch.model_validate({**table, "name": name})
    except ValidationError as bad:
        # Values are not shown: they may be secrets.
        wrong = ((".".join(map(str, e["loc"])), e["msg"]) for e in bad.errors(include_url=False, include_input=False))
        return [Problem("bad_launch", f"launch.toml: {name}.{place}: {said}", f"keys are {keys}") for place, said in wrong]
    return [Problem("bad_launch", f"launch.toml: {name}{what}", remedy) for what, remedy in _contradictions(launch)] or launch


def _contradictions(launch: Launch) -> list[tuple[str, str]]:
    found = []
    for word in (*launch.prefix, *launch.stop):
        for brace in _BRACE.finditer(word):
            if brace[1] not in PLACEHOLDERS:
                choices = ", ".join(f"{{{p}}}" for p in PLACEHOLDERS)
                found.append((f": {brace[0]} is no placeholder", f"use {choices}, and no other braces"))
    there = launch.where == "other-host" and launch.url_host in LOOPBACK
    if there and not any("{port}" in word for word in launch.prefix):
        what = ": the server is on another host, and nothing leads from here to its port"
        found.append((what, "forward it (ssh -L {port}:127.0.0.1:{port}), or set url-host to an address it can listen on"))
    return found


def missing_programs(launch: Launch) -> list[Problem]:
    """Programs of the entry that are not on this machine's PATH."""
    absent = [words[0] for words in (launch.prefix, launch.stop) if words and shutil.which(words[0]) is None]
    what = f"launch.toml: {launch.name} starts with a program that is not here"
    return [Problem("launch_missing", f"{what}: {program}", "install it, or name it by its whole path") for program in absent]


def wrap(command: Command, launch: Launch, port: int) -> Command:
    """``command`` behind the prefix: placeholders filled, variables and quoting as the prefix needs them.

    Words behind ``ssh`` are quoted, because the other side's shell splits and expands what it gets.
    """
    own = {"port": str(port), "workdir": str(command.cwd), "name": f"trigpoint-{os.getpid()}-{port}"}
    words = _listening(command.argv, launch.url_host)
    if launch.env == "argv":
        words = ("env", *(f"{k}={v}" for k, v in sorted(command.env.items()) if k not in _OF_THE_HOST), *words)
    if any(Path(word).name == "ssh" for word in launch.prefix):
        words = tuple(map(shlex.quote, words))
    prefix, stop = (_found(tuple(_fill(word, own) for word in part)) for part in (launch.prefix, launch.stop))
    hidden = (*command.redacted, *secrets(launch.prefix), *secrets(launch.stop))
    return replace(command, argv=(*prefix, *words), env={**_kept(launch.keep_env), **command.env}, redacted=hidden, stop=stop)


def _fill(word: str, own: Mapping[str, str]) -> str:
    return _BRACE.sub(lambda brace: own[brace[1]], word)


def _found(words: tuple[str, ...]) -> tuple[str, ...]:
    """The program by its whole path: it is looked for on the user's PATH, and the server gets another."""
    return (shutil.which(words[0]) or words[0], *words[1:]) if words else ()


def _kept(names: Sequence[str]) -> dict[str, str]:
    heads = tuple(name[:-1] for name in names if name.endswith("*"))
    return {k: v for k, v in os.environ.items() if k in names or (heads and k.startswith(heads))}


def _listening(argv: tuple[str, ...], host: str) -> tuple[str, ...]:
    """Tell the server to listen where the client will look for it; ``argv`` comes with the loopback."""
    at = next((i for i in range(1, len(argv)) if argv[i - 1 : i + 1] == ("--host", HOST)), None)
    return argv if at is None or host in LOOPBACK else (*argv[:at], host, *argv[at + 1 :])
