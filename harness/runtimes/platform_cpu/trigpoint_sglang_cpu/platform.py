"""The platform itself: SGLang's own CPU platform, declared as foreign, with the attention that torch brings along."""

from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum


class TorchNativeCpuPlatform(CpuSRTPlatform):  # type: ignore[misc]  # sglang is not installed where types are checked
    """A CPU whose attention is plain torch: the kernels of SGLang's documented CPU mode come from a package that is on no registry."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        """Name the backend that needs no compiled kernel."""
        return "torch_native"
