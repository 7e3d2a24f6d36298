"""`ssd bench run` under the flags that the reference implementation of SSD made known.

    python -m benchmarks.bench --llama --size 70 --gpus 2 --spec --async --k 7 --f 3 --b 1 --all
    python -m benchmarks.bench --qwen --size 32 --humaneval --numseqs 32 --output_len 512 --temp 0

Maps flags to a case and starts `ssd bench run`; knows no engine. One call measures one mode, as there;
`ssd bench run --cases ar,sd4,ssd` measures several side by side and compares them. A flag whose meaning does
not exist here is refused by name.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import reference_flags as reference
from ssd.cli.main import app

DATASETS = {"humaneval": "humaneval", "alpaca": "alpaca", "gsm": "gsm8k", "ultrafeedback": "ultrafeedback"}
BACKUPS = {"jit": "jit", "fast": "ngram"}
_NO_SUCH_PROMPTS = "prompts are those of a data set, or of a file: ssd bench run --datasets FILE.jsonl"
NO_MEANING = {
    **reference.NO_MEANING,
    "c4": _NO_SUCH_PROMPTS,
    "random": _NO_SUCH_PROMPTS,
    "example": _NO_SUCH_PROMPTS,
    "input_len": "prompts are taken as they are",
    "max-steps": "texts are written to their full length",
    "eager": "graphs are for GPUs only, and only where they pay",
    "verbose": "each text has a line",
    "debug": "see ssd generate --explain and --trace",
    "wandb": "records are kept in the run's folder; see ssd bench report",
    "group": "records are kept in the run's folder; see ssd bench report",
}


def parser() -> argparse.ArgumentParser:
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    reference.add_model_flags(parsed)
    for name in ("spec", "async", "all", *DATASETS):
        parsed.add_argument(f"--{name}", action="store_true")
    for name in ("k", "f", "gpus", "block_sz", "max_model_len"):
        parsed.add_argument(f"--{name}", type=int)
    parsed.add_argument("--b", type=int, default=1, help="texts that run together")
    parsed.add_argument("--numseqs", type=int, default=128, help="prompts of each data set")
    parsed.add_argument("--output_len", type=int, default=512)
    parsed.add_argument("--temp", type=float, default=0.0)
    parsed.add_argument("--x", type=float, help="Saguaro's coefficient; means ratio acceptance")
    parsed.add_argument("--backup", choices=("jit", "fast"))
    parsed.add_argument("--name", help="of the run: its folder is runs/NAME")
    reference.add_no_meaning(parsed, NO_MEANING)
    return parsed


def arguments_of_run(arguments: Sequence[str]) -> list[str]:
    """What `ssd bench run` is told; ends with a message where a flag means nothing."""
    flags = parser()
    given = flags.parse_args(arguments)
    reference.refuse_no_meaning(given, flags, NO_MEANING)
    works_ahead = reference.check_modes(given, flags)
    _refuse_unused(given, flags, works_ahead=works_ahead)
    case, target = _case(given, works_ahead=works_ahead), reference.target_model(given, flags)
    chosen = [ours for theirs, ours in DATASETS.items() if given.all or getattr(given, theirs)]
    name = given.name or f"{target.rpartition('/')[2]}-{case}-b{given.b}-t{given.temp:g}"
    pairs: dict[str, object] = {
        "--model": target,
        "--draft": reference.draft_model(given, flags) if given.spec else None,
        "--cases": case,
        # Without a word the reference takes GSM8K.
        "--datasets": ",".join(chosen or ["gsm8k"]),
        "--batch-sizes": given.b,
        "--temperatures": f"{given.temp:g}",
        "--num-prompts": given.numseqs,
        "--max-tokens": given.output_len,
        "--block-size": given.block_sz,
        "--max-model-len": given.max_model_len,
        "--run": f"runs/{name}",
    }
    return reference.as_words(pairs | reference.device_settings(given, flags, works_ahead=works_ahead))


def _refuse_unused(given: argparse.Namespace, flags: argparse.ArgumentParser, *, works_ahead: bool) -> None:
    """A flag that the mode has no use for would otherwise seem to have been measured."""
    needs = dict.fromkeys(("k", "x"), "--spec") | dict.fromkeys(("f", "backup"), "--spec --async")
    for name, mode in needs.items():
        has_mode = works_ahead if "async" in mode else given.spec
        if getattr(given, name) is not None and not has_mode:
            flags.error(f"--{name} has no meaning without {mode}")


def _case(given: argparse.Namespace, *, works_ahead: bool) -> str:
    if not given.spec:
        return "ar"
    words = [f"{'ssd' if works_ahead else 'sd'}{given.k or ''}"]
    words += ["ratio", f"saguaro{given.x:g}"] if given.x is not None else []
    words += [f"children{given.f}"] if given.f is not None else []
    words += [f"backup={BACKUPS[given.backup]}"] if given.backup else []
    return "+".join(words)


if __name__ == "__main__":
    app(["bench", "run", *arguments_of_run(sys.argv[1:])])
