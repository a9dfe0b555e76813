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
from collections.abc import Collection, Iterator, Mapping, Sequence
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
_SECRET = re.compile(
    r"TOKEN(?!S|I)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|BEARER|AUTHORI[SZ]ATION|(?:API|ACCESS|PRIVATE)[_-]?KEY"
    r"|(?:^|[^A-Z])(?:KEY|PASS|AUTH)(?:$|[^A-Z])",
    re.IGNORECASE,
)
"""In a name, anywhere: ``--env=HF_TOKEN=...`` has its second name in the value of the first. ``TOKENS``, ``TOKENIZER``: none."""
_GIVES = re.compile(r"=|:\s")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_PASSWORD = {"sshpass": "-p"}
"""Options whose name does not say that a password follows, by program."""
_SHELLS = frozenset({"ssh", "autossh", "slogin", "rsh", "dbclient", "plink"})
"""Programs that join their words and hand them to a shell on the other side."""
_NO_SHELL = frozenset({"srun", "kubectl", "docker", "podman", "mpirun", "mpiexec"})
"""Programs that start words as they are, on another host too."""
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
    url_host: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")] = HOST
    """Where the client finds it, a name or an IPv4 address; other than the loopback, the server is told to listen there."""
    shells: Annotated[int, Field(ge=0, le=4)] | None = None
    """How many shells split and expand the words behind the prefix, one after the other; default: one for each ``ssh``."""
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
    def depth(self) -> int | None:
        """How often words are quoted: once for each shell; None when nobody can know whether there is one."""
        if self.shells is not None:
            return self.shells
        programs = [_program(word) for word in self.prefix]
        found = sum(program in _SHELLS for program in programs)
        known = found or self.where == "same-host" or not _NO_SHELL.isdisjoint(programs)
        return found if known else None

    @property
    def label(self) -> str:
        """The coordinate: program and digest of the whole entry without its name and its secrets."""
        shown = self.model_dump_json(include={"where", "url_host", "shells", "env", "keep_env", "files"}, exclude_none=True)
        text = "\0".join([*masked(self.prefix), "", *masked(self.stop), shown])
        return f"{Path(self.prefix[0]).name} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """``words`` for showing: values that look like secrets are masked, behind a name that says so and before the host of an address."""
    return tuple(word if part is None else word[: part.start] + MASK + word[part.stop :] for word, part in _hidden(words))


def secrets(words: Sequence[str]) -> tuple[str, ...]:
    """What ``masked`` hides, to be kept out of logs too."""
    found = (word[part] for word, part in _hidden(words) if part is not None)
    return tuple(secret for secret in found if secret)


def _hidden(words: Sequence[str]) -> Iterator[tuple[str, slice | None]]:
    """Each word with the part of it that is secret."""
    options = {_PASSWORD[program] for program in map(_program, words) if program in _PASSWORD}
    hide = False
    for word in words:
        part = slice(0, len(word)) if hide else _secret_part(word, options)
        hide = not hide and part is None and word.startswith("-") and (word in options or bool(_SECRET.search(word)))
        yield word, part


def _program(word: str) -> str:
    return Path(word).name


def _secret_part(word: str, options: Collection[str]) -> slice | None:
    glued = next((option for option in options if word.startswith(option) and word != option), None)
    if glued is not None:
        return slice(len(glued), len(word))
    given = next((sign for sign in _GIVES.finditer(word) if _SECRET.search(word[: sign.start()])), None)
    if given is not None:
        return slice(given.end(), len(word))
    user = _IN_URL.search(word)
    return None if user is None else slice(*user.span())


def read_launches() -> dict[str, Launch]:
    """Entries of the user's ``launch.toml``, {} when there is none.

    Raises HostError ``launch_exposed`` when others can read or write it, UsageError ``bad_launch`` with everything wrong in it.
    """
    path = config_dir() / "launch.toml"
    try:
        about = path.stat()
    except OSError:
        return {}
    mode = about.st_mode
    if about.st_uid not in (os.geteuid(), 0):
        what = f"{path} belongs to another user (uid {about.st_uid}), and what it says is executed as you"
        raise HostError.single("launch_exposed", what, "write a file of your own there")
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
    if launch.depth is None:
        what = ": words would go to another host by a program of which it is not known whether a shell reads them there"
        found.append((what, "say shells = 0 when they are started as they are, shells = 1 when one shell splits and expands them"))
    return found


def missing_programs(launch: Launch) -> list[Problem]:
    """Programs of the entry that are not on this machine's PATH."""
    absent = [words[0] for words in (launch.prefix, launch.stop) if words and shutil.which(words[0]) is None]
    what = f"launch.toml: {launch.name} starts with a program that is not here"
    return [Problem("launch_missing", f"{what}: {program}", "install it, or name it by its whole path") for program in absent]


def wrap(command: Command, launch: Launch, port: int) -> Command:
    """``command`` behind the prefix: placeholders filled, variables and quoting as the prefix needs them.

    Words behind ``ssh`` are quoted, once for each shell that they pass: it splits and expands what it gets, and some of them are a
    manifest's. ValueError for an entry that ``read_launches`` would not have given.
    """
    own = {"port": str(port), "workdir": str(command.cwd), "name": f"trigpoint-{os.getpid()}-{port}"}
    words = _listening(command.argv, launch.url_host)
    if launch.env == "argv":
        words = ("env", *(f"{k}={v}" for k, v in sorted(command.env.items()) if k not in _OF_THE_HOST), *words)
    if launch.depth is None:
        raise ValueError(f"{launch.name}: nobody said whether a shell reads the words")
    for _ in range(launch.depth):
        words = tuple(map(shlex.quote, words))
    prefix, stop = (_found(tuple(_fill(word, own) for word in part)) for part in (launch.prefix, launch.stop))
    kept = _kept(launch.keep_env)
    told = (value for name, value in kept.items() if value and _SECRET.search(name))
    hidden = (*command.redacted, *secrets(launch.prefix), *secrets(launch.stop), *told)
    return replace(command, argv=(*prefix, *words), env={**kept, **command.env}, redacted=hidden, stop=stop)


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
