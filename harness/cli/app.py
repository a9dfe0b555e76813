"""The command group."""

from __future__ import annotations

import click

from harness.cli import campaigns, compare, gate, policies, results, runtimes, sensitivity, tools, trace_files
from harness.record.provenance import version


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="trigpoint")
def main() -> None:
    """Measure LLM serving systems, and refuse to say more than the measurement supports.

    Exit codes: 0 ok, 1 refused or gate failed, 2 usage, 3 environment, 4 inconclusive.
    """


for module in (campaigns, compare, gate, policies, results, runtimes, sensitivity, tools, trace_files):
    for command in module.COMMANDS:
        main.add_command(command)
