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
_BURSTGPT = Provenance(
    "CC-BY-4.0", "BurstGPT; cite Wang et al., BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems, KDD 2025"
)
_SERVEGEN = Provenance("Apache-2.0", "Alibaba, ServeGen: client decompositions of Model Studio workloads (alibaba/ServeGen)")
_VTC = Provenance(
    "Apache-2.0", "VTC artifact, LMSYS Chatbot Arena sample; cite Sheng et al., Fairness in Serving Large Language Models, OSDI 2024"
)
_MOONCAKE = Provenance(
    "Apache-2.0",
    "Mooncake FAST'25 traces (kvcache-ai/Mooncake); cite Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025",
)
_RAGPULSE = Provenance("MIT", "RAGPulse (flashserve/RAGPulse)")
_WEKA = Provenance("Apache-2.0", "Coding-agent sessions of kv-cache-tester (callanjfox/kv-cache-tester); licence of the repository")
_TRACELAB = Provenance("CC-BY-4.0", "TraceLab, UW SyFI (uw-syfi/TraceLab): example rounds of its data set")
_TRACELAB_CODE = Provenance("Apache-2.0", "TraceLab, UW SyFI (uw-syfi/TraceLab): example workload of its replayer")
_INFERENCE_PERF = Provenance("Apache-2.0", "Example spans of kubernetes-sigs/inference-perf")
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
    # Documented rows of the two BurstGPT headers, and the first 105 rows of release 3 as Sispheqgj/nano-kvrouter converted them.
    "e3eed36566bfc3ae6cc65ee55f7130f8bad99f4f57c86d9192e433fac17bd1a6": _BURSTGPT,
    "e20d52f3630691c4a85201a71ffa6e811b58352cde1f4b17e82d86a503212b6a": _BURSTGPT,
    "112accbab455469d847e41035e5ed91d033e4a5ff03d83bf9d9eb1e2d49b692c": _BURSTGPT,
    # BurstGPT_1.csv and BurstGPT_3.csv of the releases, by the sha256 that Git LFS and a third party state.
    "4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122": _BURSTGPT,
    "2299986a07388aa303ec2c41d1131e756db650a39ed6ef9dfe7cc3d7f9a43b8f": _BURSTGPT,
    # ServeGen: clients of m-small, deepseek-r1 and mm-image, and histograms of 11 clients.
    "5d4e974b657e029691ec58a4f3c4a6adf6dc924ab790edf5707ad34879c1bd49": _SERVEGEN,
    "79ca5f780d4ea28d6e71d96d0436b39e26db9364aa5bcf8999b777ad87d2e652": _SERVEGEN,
    "234511fe9713ec59c23815a0279b9471ff23b0ce542f72ac98ead71752b717d7": _SERVEGEN,
    "678275805fc013078dd258e58ec95570c761475992f437f9c43ef4cba0b32b4a": _SERVEGEN,
    # vtc_real_trace.csv, made from Ying1123/VTC-artifact fair_bench/real_trace.pkl.
    "3f9915c725e92f38599caef9a47cc37c12b3c1d048971222dcb9d9624ec32a4a": _VTC,
    # Token lengths: ShareGPT by Nanoflow, arXiv summarization by Vidur, BWB by Etalon.
    "5992fa529b3d12293824cf60544233f5d8202f181ca646d5280643d9e7b36529": Provenance(
        "Apache-2.0", "Nanoflow (efeslab/Nanoflow): token lengths of ShareGPT; licence of the repository"
    ),
    "be91c82bf7c39d9bc78db761e304ab5dd1e916571b92158382fe608ac44de73b": Provenance(
        "MIT", "Vidur (microsoft/vidur): token lengths of arXiv summarization; licence of the repository"
    ),
    "995d7f2f01b1c3141a1c87a083457e79d597393b851086a3b233b6fdedbf264c": Provenance(
        "Apache-2.0", "Etalon (project-etalon/etalon): token lengths of BWB; licence of the repository"
    ),
    # conversation_trace.jsonl and synthetic_trace.jsonl: published, and gzip as kept beside the project.
    "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df": _MOONCAKE,
    "d68d9c5b330cd0f01cbeda879ba5e17e64e5d7782a844d08b6285fcbdb45d7c7": _MOONCAKE,
    "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131": _MOONCAKE,
    "a178e469e828b670ff8ec23e36ce9a8b6f4faecb8b25fd3004c6586bed052cd0": _MOONCAKE,
    # 0_trace.jsonl: published, and gzip as kept.
    "cd371571bef3320907147f8901729e37f412aafb067ec8eb153e2828e1801e65": _RAGPULSE,
    "a9ac718ac7b065df62a81c76f9fc00b45873981d4db1a3eebdb1a47181c533f4": _RAGPULSE,
    # 15 and 120 sessions (tar.gz as kept, and the tar inside), trace_0277.json and trace_0624.json.
    "efd0244d29a4ad777eda37f4378a2c047148b55bc22aec3319868b087addb048": _WEKA,
    "07b7670ca7e061645dcaab624f4b0dd39ca85a85f8bedc4c61608e69d1ece37f": _WEKA,
    "c47c4da1db128bf416934c00db99dcf61078398792c725a518af3ed040d0087c": _WEKA,
    "3a405979c6c57140a1b19dc5caac6d676dc25cc5d215ea9f3606901e95f0c297": _WEKA,
    "389988c4309ffe1759bdc3559c69b3e5840d7d2e87a44e2a02754df9d015c201": _WEKA,
    "249100e53e39de1fd4302f21f1e71a7c4ceef65e04264876f1d785c108459a03": _WEKA,
    # round_trace.jsonl and multi_session_large.csv.
    "314c49483148fe68e230a683f739e3e6e68d478948ecf342739596f30af36b57": _TRACELAB,
    "8afdf8d3ae742aa73a17ab93a4f11edafa6076fdfb47d0fb96d2c3defc6de8ab": _TRACELAB_CODE,
    # simple_chain, parallel_requests, fan_in_dependencies and prefix_sharing_example.
    "9b9a58da249ec71c85e6e7b079bd4656357ded0148de0679f862f94cbc5df62d": _INFERENCE_PERF,
    "c68bda1db7479ad77382364510a205fe268c57f2b4c371db612cd34e5bfb820f": _INFERENCE_PERF,
    "24b8d280e66421da857521b6ccd712137c99be0daf89235148bc3c67e18cd33a": _INFERENCE_PERF,
    "83cdefa5de4432418002f96907cee190ad06d7c5109a6d6dee45c322f59e1cf2": _INFERENCE_PERF,
    # manifests/traces/quickstart.csv of this project.
    "f5d8872be44645be3954c3ba753d24e6ae3d09d4db19b7ac99b8f6b21318ae6c": _OWN,
}


def provenance_of(sha256: str) -> Provenance:
    """Return licence and attribution of the file with this digest, or ``UNKNOWN``."""
    return _BY_SHA256.get(sha256, UNKNOWN)
