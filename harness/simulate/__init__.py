"""The reference engine in virtual time: the same core as behind HTTP, no sleeping, no sockets; writes records of class ``synthetic``.

``simulate(core, offered, until_ns=...)`` runs a load and returns every token's stamp; ``simulate_run(attempt, simulated)`` writes the
attempt folder a campaign keeps for it.
"""

from __future__ import annotations

from harness.simulate.attempt import EngineSetup, SimulatedRun, simulate_run, virtual_facts
from harness.simulate.offered import Offered, offer
from harness.simulate.virtual import Door, Simulated, simulate

__all__ = ["Door", "EngineSetup", "Offered", "Simulated", "SimulatedRun", "offer", "simulate", "simulate_run", "virtual_facts"]
