"""schema, calibrate."""

from __future__ import annotations

import click

from harness.calibrate import calibrate as run_calibration
from harness.calibrate import find_certificate
from harness.cli.output import OK, answers, console, emit_json, json_option
from harness.clock import MonotonicClock
from harness.manifest import schema_json
from harness.observe import host_facts
from harness.record.schema import MEASUREMENT_PROTOCOL
from harness.runtimes.places import cache_dir


@click.command()
@json_option
@answers
def schema(as_json: bool) -> int:  # noqa: ARG001 - every command takes --json; this one answers with JSON either way
    """Print the manifest's JSON Schema (the committed manifests/schema.json).

    Example: trigpoint schema > manifests/schema.json
    """
    click.echo(schema_json(), nl=False)
    return OK


@click.command()
@click.option("--quick", is_flag=True, help="Under half a minute: fewer rates, shorter windows.")
@click.option("--if-missing", is_flag=True, help="Do nothing when a certificate for this host and boot exists.")
@json_option
@answers
def calibrate(quick: bool, if_missing: bool, as_json: bool) -> int:
    """Measure this host's client error against a server of known truth, and write a certificate that runs cite.

    Example: trigpoint calibrate --quick
    """
    host = str(host_facts()["host.identity"].value)
    have = find_certificate(cache_dir(), host, MEASUREMENT_PROTOCOL) if if_missing else None
    if have is None:
        say = None if as_json else lambda line: click.echo(line, err=True)
        have = run_calibration(cache=cache_dir(), host=host, quick=quick, clock=MonotonicClock(), on_progress=say).ref
    if as_json:
        emit_json(have.model_dump())
        return OK
    console().print(
        f"certificate {have.id[:16]}: up to {have.rate_ceiling:g} req/s ({have.event_ceiling:g} events/s); "
        f"slip p99 {have.slip_p99_ns / 1e6:.2f} ms, TTFT error p99 {have.ttft_error_p99_ns / 1e6:.2f} ms, "
        f"TBT error p99 {have.tbt_error_p99_ns / 1e6:.2f} ms"
    )
    return OK


COMMANDS = (schema, calibrate)
