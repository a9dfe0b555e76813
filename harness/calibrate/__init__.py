"""Drives the truth server with the load engine and writes certificates that runs cite."""

from harness.calibrate.certificate import Certificate, find_certificate
from harness.calibrate.drive import calibrate

__all__ = ["Certificate", "calibrate", "find_certificate"]
