"""What can be seen of host, processes and server metrics: facts before and after, samples during a run. No verdicts."""

from harness.observe.host import host_facts
from harness.observe.pins import check_attested, check_pins
from harness.observe.sampler import Sampler

__all__ = ["Sampler", "check_attested", "check_pins", "host_facts"]
