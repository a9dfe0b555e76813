"""Launch prefixes: read from the user's file or refused whole, filled from a closed set, shown without secrets."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HostError, UsageError
from harness.runtimes.contract import Command
from harness.runtimes.launch import MASK, Launch, masked, missing_programs, read_launches, secrets, wrap

COMMAND = Command(
    ("/opt/py", "-m", "server", "--host", "127.0.0.1", "--port", "80"), {"PATH": "/bin", "A": "x y", "HOME": "/h"}, Path("/w")
)
words = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="{}\0"), min_size=1), min_size=1, max_size=6)


ENTRIES = """
[near]
prefix = ["numactl", "-N", "0"]
where = "same-host"
[far]
prefix = ["ssh", "-L", "{port}:127.0.0.1:{port}", "n2"]
where = "other-host"
stop = ["ssh", "n2", "true"]
keep-env = ["SSH_AUTH_SOCK"]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "trigpoint").mkdir()
    return tmp_path / "trigpoint" / "launch.toml"


def write(config: Path, text: str, mode: int = 0o600) -> None:
    config.write_text(text, encoding="utf-8")
    config.chmod(mode)


def entry(prefix: tuple[str, ...] = ("env",), **changes: object) -> Launch:
    return Launch.model_validate(
        {"name": "n", "prefix": prefix, "where": "same-host"} | {k.replace("_", "-"): v for k, v in changes.items()}
    )


def test_no_file_is_no_entry(config: Path) -> None:
    assert read_launches() == {}
    assert not config.exists()


def test_entries_are_read_with_their_defaults(config: Path) -> None:
    write(config, ENTRIES)
    found = read_launches()
    assert found["near"].prefix == ("numactl", "-N", "0")
    assert (found["near"].same_files, found["far"].same_files) == (True, False)
    assert found["far"].stop == ("ssh", "n2", "true")
    assert found["near"].label != found["far"].label


def test_the_documented_entries_are_read(config: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "launching.md").read_text(encoding="utf-8")
    lines = text[text.index("    [pinned]") : text.index("| key |")].splitlines()
    write(config, "\n".join(line.strip() for line in lines))
    assert set(read_launches()) == {"pinned", "container", "far"}


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o602])
def test_a_file_that_others_can_reach_is_refused(config: Path, mode: int) -> None:
    write(config, "", mode)
    with pytest.raises(HostError) as caught:
        read_launches()
    assert caught.value.problems[0].code == "launch_exposed"
    assert caught.value.problems[0].remedy == f"chmod 600 {config}"


def test_a_file_of_another_user_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(config, ENTRIES)
    if os.geteuid() == 0:
        os.chown(config, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(HostError, match="belongs to another user") as caught:
        read_launches()
    assert caught.value.problems[0].code == "launch_exposed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a", "launch.toml"),
        ("a = 1", "is no table"),
        ('[a]\nwhere = "same-host"', "a.prefix"),
        ('[a]\nprefix = "docker run secret-word"\nwhere = "same-host"', "a.prefix"),
        ('[a]\nprefix = []\nwhere = "same-host"', "a.prefix"),
        ('[a]\nprefix = ["x"]\nwhere = "moon"', "a.where"),
        ('[a]\nprefix = ["x"]\nwhere = "same-host"\nshell = true', "a.shell"),
        ('[a]\nname = "b"\nprefix = ["x"]\nwhere = "same-host"', "is no table"),
        ('[a]\nprefix = ["x", "{home}"]\nwhere = "same-host"', "{home} is no placeholder"),
        ('[a]\nprefix = ["x", "{port"]\nwhere = "same-host"', "{ is no placeholder"),
        ('[a]\nprefix = ["x"]\nwhere = "same-host"\nstop = ["y", "{}"]', "{} is no placeholder"),
        ('[a]\nprefix = ["srun"]\nwhere = "other-host"', "nothing leads from here to its port"),
        ('[a]\nprefix = ["srun"]\nwhere = "other-host"\nurl-host = "a b"', "a.url-host"),
        ('[a]\nprefix = ["srun"]\nwhere = "other-host"\nurl-host = "fe80::1"', "a.url-host"),
        ('[a]\nprefix = ["mine", "{port}"]\nwhere = "other-host"', "say shells = 0"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_without_its_values(config: Path, text: str, said: str) -> None:
    write(config, text)
    with pytest.raises(UsageError) as caught:
        read_launches()
    assert {p.code for p in caught.value.problems} == {"bad_launch"}
    assert said in str(caught.value)
    assert "secret-word" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "trigpoint").mkdir()
    path = folder / "trigpoint" / "launch.toml"
    path.write_bytes(raw)
    path.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        codes = set()
        try:
            assert all(isinstance(launch, Launch) for launch in read_launches().values())
        except UsageError as refused:
            codes = {p.code for p in refused.problems}
    assert codes <= {"bad_launch"}


def test_placeholders_are_filled_in_the_prefix_and_nowhere_else() -> None:
    launch = entry(("no-such-program", "--name", "{name}", "-p", "{port}", "-w", "{workdir}"), stop=("no-such-stop", "{name}"))
    command = Command(("/opt/py", "{port}"), {"PATH": "/bin"}, Path("/w"))
    made = wrap(command, launch, 81)
    assert made.argv[3:] == ("-p", "81", "-w", "/w", "/opt/py", "{port}")
    assert made.stop == ("no-such-stop", made.argv[2])
    assert made.argv[2].endswith("-81")


def test_variables_travel_as_words_where_the_prefix_hands_none_on() -> None:
    made = wrap(COMMAND, entry(("no-such-program",), env="argv"), 80)
    assert made.argv[:3] == ("no-such-program", "env", "A=x y")
    assert "HOME=/h" not in made.argv
    assert wrap(COMMAND, entry(("no-such-program",)), 80).argv[1:] == COMMAND.argv


def test_the_other_side_of_ssh_gets_the_same_words() -> None:
    command = Command(("vllm", "--x", '{"a": "b c"}', "$HOME", "`id`", "a;b"), {}, Path("/w"))
    made = wrap(command, entry(("ssh", "n2")), 80)
    assert shlex.split(" ".join(made.argv[2:])) == list(command.argv)


@pytest.mark.parametrize(
    ("prefix", "changes", "depth"),
    [
        (("ssh", "n2"), {}, 1),
        (("/opt/bin/autossh", "n2"), {}, 1),
        (("ssh", "jump", "ssh", "n2"), {}, 2),
        (("ssh", "n2", "docker", "exec", "box"), {}, 1),
        (("srun", "--nodelist=n2"), {"where": "other-host"}, 0),
        (("mine", "{port}"), {"where": "other-host"}, None),
        (("mine", "{port}"), {"where": "other-host", "shells": 1}, 1),
        (("docker", "run", "-v", "/etc/ssh:/etc/ssh"), {"shells": 0}, 0),
    ],
)
def test_words_are_quoted_once_for_each_shell_that_reads_them(
    prefix: tuple[str, ...], changes: dict[str, object], depth: int | None
) -> None:
    launch = entry(prefix, **changes)
    assert launch.depth == depth
    command = Command(("vllm", '{"a": "b c"}', "$(touch /tmp/x)", "a;b", "it's"), {}, Path("/w"))
    if depth is None:
        with pytest.raises(ValueError, match="whether a shell"):
            wrap(command, launch, 80)
        return
    arrived = list(wrap(command, launch, 80).argv[len(prefix) :])
    for _ in range(depth):
        arrived = shlex.split(" ".join(arrived))
    assert arrived == list(command.argv)


def test_a_real_shell_on_the_other_side_runs_nothing_that_a_manifest_says(tmp_path: Path) -> None:
    hostile = [
        f"$(touch {tmp_path}/a)",
        f"`touch {tmp_path}/b`",
        f"; touch {tmp_path}/c",
        f"'; touch {tmp_path}/d; '",
        f"\n touch {tmp_path}/e\n",
    ]
    made = wrap(Command(("printf", "%s|", *hostile), {}, tmp_path), entry(("ssh", "jump", "ssh", "n2")), 80)
    # What ssh does: its words joined, read by the login shell there; the first of the two runs the second.
    inner = subprocess.run(
        ["/bin/sh", "-c", "printf '%s' \"$*\"", "x", *shlex.split(" ".join(made.argv[4:]))], capture_output=True, check=True
    )
    done = subprocess.run(["/bin/sh", "-c", inner.stdout.decode()], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{word}|" for word in hostile)
    assert list(tmp_path.iterdir()) == []


def test_a_server_is_told_to_listen_where_it_is_looked_for() -> None:
    assert wrap(COMMAND, entry(url_host="n2"), 80).argv[4:6] == ("--host", "n2")
    assert wrap(COMMAND, entry(), 80).argv[4:6] == ("--host", "127.0.0.1")


def test_only_named_variables_of_ours_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_X", "8")
    monkeypatch.setenv("OTHER", "9")
    monkeypatch.setenv("A", "ours")
    kept = wrap(COMMAND, entry(keep_env=("SLURM_*", "A")), 80).env
    assert {k: kept.get(k) for k in ("SLURM_JOB_ID", "SLURM_X", "OTHER", "A")} == {
        "SLURM_JOB_ID": "7", "SLURM_X": "8", "OTHER": None, "A": "x y",  # the server's own value wins
    }  # fmt: skip


def test_secrets_are_masked_hidden_from_the_log_and_no_part_of_the_label() -> None:
    launch = entry(("docker", "run", "-e", "HF_TOKEN=abc", "--password", "def", "--api-key=ghi", "-e", "SEED=1", "image"))
    assert masked(launch.prefix)[3:8] == (f"HF_TOKEN={MASK}", "--password", MASK, f"--api-key={MASK}", "-e")
    assert secrets(launch.prefix) == ("abc", "def", "ghi")
    assert {"abc", "def", "ghi"} <= set(wrap(COMMAND, launch, 80).redacted)
    other = entry(("docker", "run", "-e", "HF_TOKEN=xyz", "--password", "uvw", "--api-key=rst", "-e", "SEED=1", "image"))
    assert launch.label == other.label


@pytest.mark.parametrize(
    ("given", "shown", "hidden"),
    [
        (["docker", "--env=HF_TOKEN=abc"], ["docker", f"--env=HF_TOKEN={MASK}"], ("abc",)),
        (["srun", "--export=ALL,API_KEY=abc"], ["srun", f"--export=ALL,API_KEY={MASK}"], ("abc",)),
        (["env", "HFTOKEN=abc", "apiKey=def"], ["env", f"HFTOKEN={MASK}", f"apiKey={MASK}"], ("abc", "def")),
        (["x", "--header", "Authorization: Bearer abc"], ["x", "--header", f"Authorization: {MASK}"], ("Bearer abc",)),
        (["x", "https://me:abc@registry.example/i"], ["x", f"https://{MASK}@registry.example/i"], ("me:abc",)),
        (["sshpass", "-p", "abc", "ssh", "n2"], ["sshpass", "-p", MASK, "ssh", "n2"], ("abc",)),
        (["sshpass", "-pabc", "ssh", "n2"], ["sshpass", f"-p{MASK}", "ssh", "n2"], ("abc",)),
        (["x", "--token", "-abc", "n2"], ["x", "--token", MASK, "n2"], ("-abc",)),
        (["env", "API_KEY="], ["env", f"API_KEY={MASK}"], ()),
        (["x", "--tokenizer=a", "--max-tokens", "5", "-p", "80"], ["x", "--tokenizer=a", "--max-tokens", "5", "-p", "80"], ()),
        (
            ["ssh", "-o", "StrictHostKeyChecking=yes", "-L", "80:127.0.0.1:80"],
            ["ssh", "-o", "StrictHostKeyChecking=yes", "-L", "80:127.0.0.1:80"],
            (),
        ),
    ],
)
def test_secrets_are_found_wherever_a_name_says_so(given: list[str], shown: list[str], hidden: tuple[str, ...]) -> None:
    assert list(masked(given)) == shown
    assert secrets(given) == hidden


def test_a_kept_variable_that_is_a_secret_is_hidden_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "abc")
    monkeypatch.setenv("LANG", "C")
    assert wrap(COMMAND, entry(keep_env=("HF_TOKEN", "LANG")), 80).redacted == ("abc",)


@given(words, words)
def test_the_label_tells_entries_apart(one: list[str], two: list[str]) -> None:
    same = masked(one) == masked(two)
    assert (entry(tuple(one)).label == entry(tuple(two)).label) is same


def test_a_program_that_is_not_here_is_named() -> None:
    found = missing_programs(entry(("no-such-program", "x"), stop=("no-such-stop",)))
    assert [(p.code, p.what.rpartition(": ")[2]) for p in found] == [
        ("launch_missing", "no-such-program"),
        ("launch_missing", "no-such-stop"),
    ]
    assert missing_programs(entry(("env",))) == []
