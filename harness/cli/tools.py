"""schema, calibrate."""

from __future__ import annotations

import click

from harness.calibrate import calibrate as run_calibration
from harness.calibrate import cited, find_certificate, summary, table
from harness.cli.certificates import unfit
from harness.cli.output import OK, answers, emit_json, json_option
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
@click.option("--quick", is_flag=True, help="Under 40 seconds: fewer and shorter stages. In full it takes eight minutes and looks farther.")
@click.option("--if-missing", is_flag=True, help="Do nothing when a certificate of at most 30 days for this host, boot and workers exists.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Worker processes, as many as the runs will have.")
@json_option
@answers
def calibrate(quick: bool, if_missing: bool, workers: int, as_json: bool) -> int:
    """Measure this host's client error against a server of known truth, and write a certificate that runs cite.

    Requests, token events, open streams and events decoded as they come are raised each on its own; the certificate says up to where each
    held.

    Example: trigpoint calibrate --quick
    """
    host = str(host_facts()["host.identity"].value)
    ref = find_certificate(cache_dir(), host, MEASUREMENT_PROTOCOL, workers) if if_missing else None
    made = cited(cache_dir(), ref) if ref is not None and unfit(ref, workers) is None else None
    if made is None:
        say = None if as_json else lambda line: click.echo(line, err=True)
        made = run_calibration(cache=cache_dir(), host=host, quick=quick, clock=MonotonicClock(), on_progress=say, workers=workers)
    if as_json:
        emit_json(made.ref.model_dump() | {"stages": [row.model_dump() for row in made.rates]})
        return OK
    for line in (*table(made), summary(made)):
        click.echo(line)
    return OK


COMMANDS = (schema, calibrate)
