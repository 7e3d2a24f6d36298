"""What the reference implementation of SSD calls models and devices: for front ends under its flags.

Knows its families, sizes and defaults. benchmarks/chat.py and benchmarks/bench.py stand on it.
"""

import argparse

_LLAMA = {"1": "Llama-3.2-1B", "3": "Llama-3.2-3B", "8": "Llama-3.1-8B", "70": "Llama-3.1-70B"}
_QWEN = {size: f"Qwen/Qwen3-{size}B" for size in ("0.6", "1.7", "4", "8", "14", "32")}
_MODELS = {"llama": {size: f"meta-llama/{name}-Instruct" for size, name in _LLAMA.items()}, "qwen": _QWEN}
_TARGET_SIZE, _DRAFT_SIZE = {"llama": "70", "qwen": "32"}, {"llama": "1", "qwen": "0.6"}
_FAN_OUT = "fan-out follows the draft's own chances: see --f, and --draft-growth of ssd"
NO_MEANING = {
    "eagle": "drafts are models of their own",
    "fl": _FAN_OUT,
    "flh": _FAN_OUT,
    "flm": _FAN_OUT,
    "afn": _FAN_OUT,
    "dtemp": "the draft uses the request's temperature",
    "ttemp": "the target uses the request's temperature",
}


def add_model_flags(flags: argparse.ArgumentParser) -> None:
    family = flags.add_mutually_exclusive_group()
    family.add_argument("--llama", action="store_const", const="llama", dest="family", default="llama")
    family.add_argument("--qwen", action="store_const", const="qwen", dest="family")
    flags.add_argument("--size", help="billions of parameters of the target")
    flags.add_argument("--model", help="the target, instead of a size: a folder, a .gguf file, a hub name")
    flags.add_argument("--draft", help="the draft: a size, or as --model")


def add_no_meaning(flags: argparse.ArgumentParser, reasons: dict[str, str]) -> None:
    for name in reasons:
        flags.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)


def refuse_no_meaning(
    given: argparse.Namespace, flags: argparse.ArgumentParser, reasons: dict[str, str]
) -> None:
    for name, reason in reasons.items():
        if getattr(given, name.replace("-", "_")) is not None:
            flags.error(f"--{name} has no meaning here: {reason}")


def check_modes(given: argparse.Namespace, flags: argparse.ArgumentParser) -> bool:
    """Whether the draft works ahead."""
    works_ahead = bool(getattr(given, "async"))
    if works_ahead and not given.spec:
        flags.error("--async needs --spec")
    return works_ahead


def target_model(given: argparse.Namespace, flags: argparse.ArgumentParser) -> str:
    named: str | None = given.model
    return named or _model(given.size or _TARGET_SIZE[given.family], given.family, flags)


def draft_model(given: argparse.Namespace, flags: argparse.ArgumentParser) -> str:
    named: str = given.draft or _DRAFT_SIZE[given.family]
    return _model(named, given.family, flags) if named.replace(".", "").isdigit() else named


def device_settings(
    given: argparse.Namespace, flags: argparse.ArgumentParser, *, works_ahead: bool
) -> dict[str, object]:
    if given.gpus is None:
        return {}
    if given.gpus > 1 + works_ahead or given.gpus < 1:
        flags.error(f"--gpus {given.gpus}: one for the target and, with --async, one for the draft")
    return {"--device": "cuda:0", "--draft-device": "cuda:1" if given.gpus == 2 else None}


def as_words(pairs: dict[str, object]) -> list[str]:
    """Flags and their values, without those that nobody said."""
    return [word for name, value in pairs.items() if value is not None for word in (name, str(value))]


def _model(size: str, family: str, flags: argparse.ArgumentParser) -> str:
    models = _MODELS[family]
    if size not in models:
        flags.error(
            f"no {family} model of size {size}: there are {', '.join(models)}; or name one by --model"
        )
    return models[size]
