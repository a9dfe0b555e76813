"""The command line: parse, call the library, render, exit code. No rule lives here."""

from harness.cli.app import main

__all__ = ["main"]
