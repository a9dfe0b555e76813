"""The declarative manifest: read with line numbers, checked as a whole, expanded into runs. Knows no HTTP and no statistics."""

from harness.manifest.checks import NEVER_WAIVABLE
from harness.manifest.editor import schema_json
from harness.manifest.expand import Campaign, PlannedRun
from harness.manifest.freeze import freeze
from harness.manifest.load import LoadedManifest, ManifestError, load_manifest, parse_manifest
from harness.manifest.schema import Manifest
from harness.manifest.searches import Searches, expand

__all__ = [
    "NEVER_WAIVABLE",
    "Campaign",
    "LoadedManifest",
    "Manifest",
    "ManifestError",
    "PlannedRun",
    "Searches",
    "expand",
    "freeze",
    "load_manifest",
    "parse_manifest",
    "schema_json",
]
