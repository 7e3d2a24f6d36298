"""`ssd chat` under the flags that the reference implementation of SSD made known.

    python -m benchmarks.chat --ssd --spec --async --k 7 --f 2 --qwen --size 8 --metrics
    python -m benchmarks.chat --vllm --url http://localhost:8000

Maps flags to settings and starts `ssd chat`; knows no engine. A flag whose meaning does not exist here
is refused by name. Servers are not started: start them yourself, and name them with --url or --port.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import reference_flags as reference
from ssd.cli.main import app

PORTS = {"vllm": 40020, "sglang": 40010}
NO_MEANING = {
    "tp": "servers are not started here, and a target of our own runs on one device",
    **reference.NO_MEANING,
}


def parser() -> argparse.ArgumentParser:
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    who = parsed.add_mutually_exclusive_group(required=True)
    for name in ("ssd", "vllm", "sglang"):
        who.add_argument(f"--{name}", action="store_true")
    reference.add_model_flags(parsed)
    for name in ("spec", "async", "ar", "eager", "ignore_eos", "metrics"):
        parsed.add_argument(f"--{name}", action="store_true")
    parsed.add_argument("--temp", type=float, default=0.0)
    parsed.add_argument("--output_len", type=int, default=2048)
    for name in ("k", "f", "b", "gpus", "port", "block_sz", "max_model_len"):
        parsed.add_argument(f"--{name}", type=int)
    parsed.add_argument("--x", type=float)
    parsed.add_argument("--backup", choices=("jit", "fast"))
    parsed.add_argument("--url")
    reference.add_no_meaning(parsed, NO_MEANING)
    return parsed


def arguments_of_chat(arguments: Sequence[str]) -> list[str]:
    """What `ssd chat` is told; ends with a message where a flag means nothing."""
    flags = parser()
    given = flags.parse_args(arguments)
    reference.refuse_no_meaning(given, flags, NO_MEANING)
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
    works_ahead = reference.check_modes(given, flags)
    if given.ar and given.spec:
        flags.error("--ar and --spec: choose one")
    pairs: dict[str, object] = {
        "--model": reference.target_model(given, flags),
        "--max-num-seqs": given.b,
        "--block-size": given.block_sz,
        "--max-model-len": given.max_model_len,
    }
    if given.spec:
        pairs |= _drafting(given, flags, works_ahead=works_ahead)
    return reference.as_words(pairs | reference.device_settings(given, flags, works_ahead=works_ahead))


def _drafting(
    given: argparse.Namespace, flags: argparse.ArgumentParser, *, works_ahead: bool
) -> dict[str, object]:
    pairs: dict[str, object] = {
        "--draft": reference.draft_model(given, flags),
        "--mode": "ssd" if works_ahead else "sd",
        "--lookahead": given.k,
        "--draft-children": given.f,
        "--backup": {"jit": "jit", "fast": "ngram", None: None}[given.backup],
    }
    return pairs | ({"--acceptance": "ratio", "--saguaro": given.x} if given.x is not None else {})


if __name__ == "__main__":
    app(["chat", *arguments_of_chat(sys.argv[1:])])
