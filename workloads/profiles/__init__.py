"""What a raw file shows that its rows no longer tell: layout, columns, the spelling of stamps, components. For looking, not for replay."""

from workloads.profiles.registry import profile

__all__ = ["profile"]
