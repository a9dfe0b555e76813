"""SGLang on a CPU without its kernel package, through SGLang's own door for platforms (entry point group ``sglang.srt.platforms``).

Installed only into the environment that ``trigpoint runtime install sglang-cpu`` makes; nothing else of Trigpoint imports it. Light on
purpose: the line in our ``.pth`` file imports this package at every start of that interpreter.
"""


def activate() -> str:
    """Return the dotted name of the platform's class; SGLang imports it when ``SGLANG_PLATFORM=trigpoint_cpu`` chooses it."""
    return "trigpoint_sglang_cpu.platform.TorchNativeCpuPlatform"
