"""Who made a trace and under which licence, known by content and never guessed from a file's name or format."""

from __future__ import annotations

from typing import NamedTuple


class Provenance(NamedTuple):
    """Licence (SPDX id where there is one) and the credit that reports must carry."""

    licence: str
    attribution: str


UNKNOWN = Provenance("unknown", "unknown: not one of the published files this version knows by sha256")
"""A file of a known format that is not a known file. Its format does not tell its licence."""

_AZURE_2023 = Provenance(
    "CC-BY-4.0",
    "Microsoft, Azure LLM inference traces 2023; cite Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, "
    "ISCA 2024",
)
_VIDUR = Provenance("CC-BY-4.0", f"{_AZURE_2023.attribution}; rewritten as relative seconds by microsoft/vidur (MIT)")
_OWN = Provenance("Apache-2.0", "Trigpoint, synthetic quickstart trace (manifests/traces/make_quickstart.py)")

_BY_SHA256 = {
    # AzureLLMInferenceTrace_code.csv and _conv.csv as published in Azure/AzurePublicDataset.
    "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6": _AZURE_2023,
    "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8": _AZURE_2023,
    # The first 20 rows of conv, as kubernetes-sigs/inference-perf ships them.
    "640b755cca147fa504a4de6abc9e2da9feb4e3b1a34955bc1b2ed42edccf9a92": _AZURE_2023,
    # splitwise_code.csv and splitwise_conv.csv of microsoft/vidur: the rows of code and conv as relative seconds.
    "f266b907d109d471c61283ab69771c17ad79a18b33ff6e96aa546346f52767a6": _VIDUR,
    "439e4138b7e384f316de614c071f7162be05b8af0cef866f82faacd1b0472249": _VIDUR,
    # manifests/traces/quickstart.csv of this project.
    "f5d8872be44645be3954c3ba753d24e6ae3d09d4db19b7ac99b8f6b21318ae6c": _OWN,
}


def provenance_of(sha256: str) -> Provenance:
    """Return licence and attribution of the file with this digest, or ``UNKNOWN``."""
    return _BY_SHA256.get(sha256, UNKNOWN)
