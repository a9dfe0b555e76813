"""Drives the truth server with the load engine and writes certificates that runs cite."""

from harness.calibrate.certificate import Certificate, cited, find_certificate
from harness.calibrate.drive import calibrate
from harness.calibrate.table import summary, table

__all__ = ["Certificate", "calibrate", "cited", "find_certificate", "summary", "table"]
