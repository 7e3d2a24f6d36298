"""`ssd chat` and `ssd bench run` under the flags that the reference implementation of SSD made known.

    python -m benchmarks.reference chat --ssd --spec --async --k 7 --f 2 --qwen --size 8 --metrics
    python -m benchmarks.reference chat --vllm --url http://localhost:8000
    python -m benchmarks.reference bench --llama --size 70 --gpus 2 --spec --async --k 7 --f 3 --b 1 --all
    python -m benchmarks.reference bench --qwen --size 32 --humaneval --numseqs 32 --output_len 512 --temp 0

Knows the reference's families, sizes and defaults; no engine. A flag whose meaning does not exist here is
refused by name. Servers are not started: start them yourself, and name them with --url or --port. One call of
bench measures one mode, as there; `ssd bench run --cases ar,sd4,ssd` measures several side by side.
"""

import argparse
import sys
from collections.abc import Sequence

from ssd.cli.main import app

_LLAMA = {"1": "Llama-3.2-1B", "3": "Llama-3.2-3B", "8": "Llama-3.1-8B", "70": "Llama-3.1-70B"}
_QWEN = {size: f"Qwen/Qwen3-{size}B" for size in ("0.6", "1.7", "4", "8", "14", "32")}
_MODELS = {"llama": {size: f"meta-llama/{name}-Instruct" for size, name in _LLAMA.items()}, "qwen": _QWEN}
_TARGET_SIZE, _DRAFT_SIZE = {"llama": "70", "qwen": "32"}, {"llama": "1", "qwen": "0.6"}
_PORTS = {"vllm": 40020, "sglang": 40010}
_DATASETS = {"humaneval": "humaneval", "alpaca": "alpaca", "gsm": "gsm8k", "ultrafeedback": "ultrafeedback"}
_SWITCHES = {"chat": ("ar", "eager", "ignore_eos", "metrics"), "bench": ("all", *_DATASETS)}
_ENGINE = dict[str, int | None].fromkeys(("k", "f", "gpus", "block_sz", "max_model_len"))
_NUMBERS = {
    "chat": {**_ENGINE, "output_len": 2048, "b": None, "port": None},
    "bench": {**_ENGINE, "output_len": 512, "b": 1, "numseqs": 128},
}
_BACKUPS = {"jit": "jit", "fast": "ngram", None: None}
_NO_SUCH_PROMPTS = "prompts are those of a data set, or of a file: ssd bench run --datasets FILE.jsonl"
_KEPT = "records are kept in the run's folder; see ssd bench report"
_FAN_OUT = "fan-out follows the draft's own chances: see --f, and --draft-growth of ssd"
_NO_MEANING = {
    "eagle": "drafts are models of their own",
    **dict.fromkeys(("fl", "flh", "flm", "afn"), _FAN_OUT),
    "dtemp": "the draft uses the request's temperature",
    "ttemp": "the target uses the request's temperature",
}
NO_MEANING = {
    "chat": {
        **_NO_MEANING,
        "tp": "servers are not started here, and a target of our own runs on one device",
    },
    "bench": {
        **_NO_MEANING,
        **dict.fromkeys(("c4", "random", "example"), _NO_SUCH_PROMPTS),
        "input_len": "prompts are taken as they are",
        "max-steps": "texts are written to their full length",
        "eager": "graphs are for GPUs only, and only where they pay",
        "verbose": "each text has a line",
        "debug": "see ssd generate --explain and --trace",
        **dict.fromkeys(("wandb", "group"), _KEPT),
    },
}


def parser(command: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    family = made.add_mutually_exclusive_group()
    family.add_argument("--llama", action="store_const", const="llama", dest="family", default="llama")
    family.add_argument("--qwen", action="store_const", const="qwen", dest="family")
    made.add_argument("--size", help="billions of parameters of the target")
    made.add_argument("--model", help="the target, instead of a size: a folder, a .gguf file, a hub name")
    made.add_argument("--draft", help="the draft: a size, or as --model")
    made.add_argument("--x", type=float, help="Saguaro's coefficient; means ratio acceptance")
    made.add_argument("--backup", choices=("jit", "fast"))
    made.add_argument("--temp", type=float, default=0.0)
    if command == "chat":
        who = made.add_mutually_exclusive_group(required=True)
        for name in ("ssd", "vllm", "sglang"):
            who.add_argument(f"--{name}", action="store_true")
        made.add_argument("--url")
    else:
        made.add_argument("--name", help="of the run: its folder is runs/NAME")
    for name in ("spec", "async", *_SWITCHES[command]):
        made.add_argument(f"--{name}", action="store_true")
    for name, value in _NUMBERS[command].items():
        made.add_argument(f"--{name}", type=int, default=value)
    for name in NO_MEANING[command]:
        made.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)
    return made


def _parsed(command: str, words: Sequence[str]) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    flags = parser(command)
    given = flags.parse_args(words)
    for name, reason in NO_MEANING[command].items():
        if getattr(given, name.replace("-", "_")) is not None:
            flags.error(f"--{name} has no meaning here: {reason}")
    given.works_ahead = getattr(given, "async")
    return given, flags


def arguments_of_chat(words: Sequence[str]) -> list[str]:
    """What `ssd chat` is told; ends with a message where a flag means nothing."""
    given, flags = _parsed("chat", words)
    common = ["--temperature", str(given.temp), "--max-tokens", str(given.output_len)]
    common += [f"--{name.replace('_', '-')}" for name in ("metrics", "ignore_eos") if getattr(given, name)]
    return common + (_own_chat(given, flags) if given.ssd else _chat_with_server(given, flags))


def _chat_with_server(given: argparse.Namespace, flags: argparse.ArgumentParser) -> list[str]:
    for name in ("ar", "spec", "async", "k", "f", "b", "gpus", "x", "backup", "block_sz", "max_model_len"):
        if getattr(given, name) not in (None, False):
            flags.error(f"--{name} has no meaning with a server: it was told when it started")
    name = "vllm" if given.vllm else "sglang"
    url = given.url or f"http://localhost:{given.port or _PORTS[name]}"
    return [f"--{name}", url, *(["--model", given.model] if given.model else [])]


def _own_chat(given: argparse.Namespace, flags: argparse.ArgumentParser) -> list[str]:
    for name in ("url", "port"):
        if getattr(given, name) is not None:
            flags.error(f"--{name} has no meaning with --ssd, which runs in this process")
    if given.ar and given.spec:
        flags.error("--ar and --spec: choose one")
    pairs = _engine_settings(given, flags) | {"--max-num-seqs": given.b}
    if given.spec:
        pairs |= {
            "--mode": "ssd" if given.works_ahead else "sd",
            "--lookahead": given.k,
            "--draft-children": given.f,
            "--backup": _BACKUPS[given.backup],
        }
        pairs |= {"--acceptance": "ratio", "--saguaro": given.x} if given.x is not None else {}
    return _as_words(pairs)


def arguments_of_run(words: Sequence[str]) -> list[str]:
    """What `ssd bench run` is told; ends with a message where a flag means nothing."""
    given, flags = _parsed("bench", words)
    settings, case = _engine_settings(given, flags), _case(given, flags)
    chosen = [ours for theirs, ours in _DATASETS.items() if given.all or getattr(given, theirs)]
    target = str(settings["--model"]).rpartition("/")[2]
    pairs: dict[str, object] = {
        "--cases": case,
        # Without a word the reference takes GSM8K.
        "--datasets": ",".join(chosen or ["gsm8k"]),
        "--batch-sizes": given.b,
        "--temperatures": f"{given.temp:g}",
        "--num-prompts": given.numseqs,
        "--max-tokens": given.output_len,
        "--run": f"runs/{given.name or f'{target}-{case}-b{given.b}-t{given.temp:g}'}",
    }
    return _as_words(settings | pairs)


def _case(given: argparse.Namespace, flags: argparse.ArgumentParser) -> str:
    """A flag that the mode has no use for would otherwise seem to have been measured: it is refused."""
    needs = {"k": "--spec", "x": "--spec", "f": "--spec --async", "backup": "--spec --async"}
    for name, mode in needs.items():
        has_mode = given.works_ahead if "async" in mode else given.spec
        if getattr(given, name) is not None and not has_mode:
            flags.error(f"--{name} has no meaning without {mode}")
    if not given.spec:
        return "ar"
    words = [f"{'ssd' if given.works_ahead else 'sd'}{given.k or ''}"]
    words += ["ratio", f"saguaro{given.x:g}"] if given.x is not None else []
    words += [f"children{given.f}"] if given.f is not None else []
    words += [f"backup={_BACKUPS[given.backup]}"] if given.backup else []
    return "+".join(words)


def _engine_settings(given: argparse.Namespace, flags: argparse.ArgumentParser) -> dict[str, object]:
    """Models and devices."""
    if given.works_ahead and not given.spec:
        flags.error("--async needs --spec")
    if given.gpus is not None and not 1 <= given.gpus <= 1 + given.works_ahead:
        flags.error(f"--gpus {given.gpus}: one for the target and, with --async, one for the draft")
    draft = given.draft or _DRAFT_SIZE[given.family]
    is_size = draft.replace(".", "").isdigit()
    return {
        "--model": given.model or _model(given.size or _TARGET_SIZE[given.family], given.family, flags),
        "--draft": (_model(draft, given.family, flags) if is_size else draft) if given.spec else None,
        "--block-size": given.block_sz,
        "--max-model-len": given.max_model_len,
        "--device": "cuda:0" if given.gpus else None,
        "--draft-device": "cuda:1" if given.gpus == 2 else None,
    }


def _model(size: str, family: str, flags: argparse.ArgumentParser) -> str:
    models = _MODELS[family]
    if size not in models:
        flags.error(
            f"no {family} model of size {size}: there are {', '.join(models)}; or name one by --model"
        )
    return models[size]


def _as_words(pairs: dict[str, object]) -> list[str]:
    """Flags and their values, without those that nobody said."""
    return [word for name, value in pairs.items() if value is not None for word in (name, str(value))]


def main() -> None:
    command, *words = sys.argv[1:] or ["--help"]
    if command == "chat":
        app(["chat", *arguments_of_chat(words)])
    elif command == "bench":
        app(["bench", "run", *arguments_of_run(words)])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
