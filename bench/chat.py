"""`ssd chat` under the flags that the reference implementation of SSD made known.

    python bench/chat.py --ssd --spec --async --k 7 --f 2 --qwen --size 8 --metrics
    python bench/chat.py --vllm --url http://localhost:8000

Maps flags to settings and starts `ssd chat`; knows no engine. A flag whose meaning does not exist here
is refused by name. Servers are not started: start them yourself, and name them with --url or --port.
"""

import argparse
import sys
from collections.abc import Sequence

from ssd.cli.main import app

LLAMA = {"1": "Llama-3.2-1B", "3": "Llama-3.2-3B", "8": "Llama-3.1-8B", "70": "Llama-3.1-70B"}
QWEN = {size: f"Qwen/Qwen3-{size}B" for size in ("0.6", "1.7", "4", "8", "14", "32")}
MODELS = {"llama": {size: f"meta-llama/{name}-Instruct" for size, name in LLAMA.items()}, "qwen": QWEN}
TARGET_SIZE, DRAFT_SIZE = {"llama": "70", "qwen": "32"}, {"llama": "1", "qwen": "0.6"}
PORTS = {"vllm": 40020, "sglang": 40010}
NO_MEANING = {
    "tp": "servers are not started here, and a target of our own runs on one device",
    "eagle": "drafts are models of their own",
    "fl": "fan-out follows the draft's own chances: see --f, and --growth of ssd chat",
    "flh": "fan-out follows the draft's own chances: see --f, and --growth of ssd chat",
    "flm": "fan-out follows the draft's own chances: see --f, and --growth of ssd chat",
    "afn": "fan-out follows the draft's own chances: see --f, and --growth of ssd chat",
    "dtemp": "the draft uses the request's temperature",
    "ttemp": "the target uses the request's temperature",
}


def parser() -> argparse.ArgumentParser:
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    who = parsed.add_mutually_exclusive_group(required=True)
    for name in ("ssd", "vllm", "sglang"):
        who.add_argument(f"--{name}", action="store_true")
    family = parsed.add_mutually_exclusive_group()
    family.add_argument("--llama", action="store_const", const="llama", dest="family", default="llama")
    family.add_argument("--qwen", action="store_const", const="qwen", dest="family")
    for name in ("spec", "async", "ar", "eager", "ignore_eos", "metrics"):
        parsed.add_argument(f"--{name}", action="store_true")
    parsed.add_argument("--size", help="billions of parameters of the target")
    parsed.add_argument("--model", help="the target, instead of a size: a folder, a .gguf file, a hub name")
    parsed.add_argument("--draft", help="the draft: a size, or as --model")
    parsed.add_argument("--temp", type=float, default=0.0)
    parsed.add_argument("--output_len", type=int, default=2048)
    for name in ("k", "f", "b", "gpus", "port", "block_sz", "max_model_len"):
        parsed.add_argument(f"--{name}", type=int)
    parsed.add_argument("--x", type=float)
    parsed.add_argument("--backup", choices=("jit", "fast"))
    parsed.add_argument("--url")
    for name in NO_MEANING:
        parsed.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)
    return parsed


def arguments_of_chat(arguments: Sequence[str]) -> list[str]:
    """What `ssd chat` is told; ends with a message where a flag means nothing."""
    flags = parser()
    given = flags.parse_args(arguments)
    for name, reason in NO_MEANING.items():
        if getattr(given, name) is not None:
            flags.error(f"--{name} has no meaning here: {reason}")
    common = ["--temperature", str(given.temp), "--max-tokens", str(given.output_len)]
    common += [f"--{name.replace('_', '-')}" for name in ("metrics", "ignore_eos") if getattr(given, name)]
    return common + (_own(given, flags) if given.ssd else _server(given, flags))


def _server(given: argparse.Namespace, flags: argparse.ArgumentParser) -> list[str]:
    for name in ("ar", "spec", "async", "k", "f", "b", "gpus", "x", "backup", "block_sz", "max_model_len"):
        if getattr(given, name) not in (None, False):
            flags.error(f"--{name} has no meaning with a server: it was told when it started")
    name = "vllm" if given.vllm else "sglang"
    url = given.url or f"http://localhost:{given.port or PORTS[name]}"
    return [f"--{name}", url, *(["--model", given.model] if given.model else [])]


def _own(given: argparse.Namespace, flags: argparse.ArgumentParser) -> list[str]:
    for name in ("url", "port"):
        if getattr(given, name) is not None:
            flags.error(f"--{name} has no meaning with --ssd, which runs in this process")
    works_ahead = getattr(given, "async")
    if works_ahead and not given.spec:
        flags.error("--async needs --spec")
    if given.ar and given.spec:
        flags.error("--ar and --spec: choose one")
    target = given.model or _model(given.size or TARGET_SIZE[given.family], given.family, flags)
    pairs: dict[str, object] = {
        "--model": target,
        "--max-num-seqs": given.b,
        "--block-size": given.block_sz,
        "--max-model-len": given.max_model_len,
    }
    if given.spec:
        pairs |= _drafting(given, flags, works_ahead=works_ahead)
    pairs |= _devices(given, flags, works_ahead=works_ahead)
    return [word for name, value in pairs.items() if value is not None for word in (name, str(value))]


def _drafting(
    given: argparse.Namespace, flags: argparse.ArgumentParser, *, works_ahead: bool
) -> dict[str, object]:
    named = given.draft or DRAFT_SIZE[given.family]
    is_size = named.replace(".", "").isdigit()
    pairs: dict[str, object] = {
        "--draft": _model(named, given.family, flags) if is_size else named,
        "--mode": "ssd" if works_ahead else "sd",
        "--lookahead": given.k,
        "--draft-children": given.f,
        "--backup": {"jit": "jit", "fast": "ngram", None: None}[given.backup],
    }
    return pairs | ({"--acceptance": "ratio", "--saguaro": given.x} if given.x is not None else {})


def _devices(
    given: argparse.Namespace, flags: argparse.ArgumentParser, *, works_ahead: bool
) -> dict[str, object]:
    if given.gpus is None:
        return {}
    if given.gpus > 1 + works_ahead or given.gpus < 1:
        flags.error(f"--gpus {given.gpus}: one for the target and, with --async, one for the draft")
    return {"--device": "cuda:0", "--draft-device": "cuda:1" if given.gpus == 2 else None}


def _model(size: str, family: str, flags: argparse.ArgumentParser) -> str:
    models = MODELS[family]
    if size not in models:
        flags.error(
            f"no {family} model of size {size}: there are {', '.join(models)}; or name one by --model"
        )
    return models[size]


if __name__ == "__main__":
    app(["chat", *arguments_of_chat(sys.argv[1:])])
