"""Let torchvision be imported beside a CPU torch.

SGLang imports torchvision whatever the model is. Its default wheel is built for CUDA, so beside a CPU torch its library does not load and
its Python part fails on two operators that nobody defined. No model that Trigpoint serves on a CPU calls them: declared without an
implementation they let the import pass, and a call would still raise.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

SCHEMAS = (
    "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""The operators whose absence stops the import (torchvision 0.28)."""


class BeforeTorchvision:
    """A finder that finds nothing: it declares the operators when torchvision is first asked for, and then steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return None always, so that the usual finders go on."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and not _loads(list(spec.submodule_search_locations or ())):
                _declare()
        return None


def _loads(folders: list[str]) -> bool:
    """Whether torchvision's own library loads, and with it the real operators."""
    import torch

    finder = importlib.machinery.FileFinder(
        folders[0] if folders else "", (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    )
    library = finder.find_spec("_C")
    if library is None or library.origin is None:
        return False
    try:
        torch.ops.load_library(library.origin)
    except OSError:
        return False
    return True


def _declare() -> None:
    import torch

    for schema in SCHEMAS:
        torch.library.define(*_name_and_signature(schema))


def _name_and_signature(schema: str) -> tuple[str, str]:
    name, bracket, rest = schema.partition("(")
    return name, bracket + rest


sys.meta_path.insert(0, BeforeTorchvision())
