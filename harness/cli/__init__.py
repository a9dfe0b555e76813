"""The command line: parse, call the library, render, exit code. No rule lives here."""

__all__ = ["main"]


def main() -> None:
    """The command ``trigpoint``.

    The commands are loaded by this call and not by importing this package: every worker and spooler is a fresh interpreter, which imports
    the script that was started once more. With the commands that took each of them 2.5 s of CPU time and 200 MB for nothing.
    """
    from harness.cli.app import main as commands

    commands()
