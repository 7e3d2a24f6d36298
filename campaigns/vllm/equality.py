"""Real vLLM with a real draft: are all tokens those of the same worker alone?

    python -m campaigns.vllm.equality --target FOLDER --draft FOLDER --record FILE.jsonl

One vLLM serves both sides of each case, with the draft detached and attached, so that nothing else differs.
Cases that the record holds already are not run again; faults.py kills the draft.
`--stock` compares texts of the record with those of a vLLM that has nothing of ours in it: greedy ones with
vLLM's V1 runner, all that have seeds with `--runner v2`, where vLLM samples by seed and position itself.
`--control` does the same with vLLM's own n-gram speculation, whose rule gives other tokens. With bfloat16
each difference is shown with the gap of its scores, and with the most that rounding explains.

Where there is no GPU, V2 runs in the stand-in of tests/vllm/bed:

    PYTHONPATH=tests/vllm/bed:src:. TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 python -m … --runner v2
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns.record import Record
from campaigns.vllm.real import SALT, Draft, Setup, StockTarget, Target, prepare
from campaigns.vllm.ties import ScoreLog, common_keys, differences, logged_scores
from ssd.integrations.vllm import speculation
from ssd.sampling.seeds import seed_of

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Numbers: 1 2 3 4 5 6 7",
    "Once upon a time there was a",
    "Write a haiku about the sea.",
    "import os\nimport sys\n\ndef main():\n",
    "The three laws of motion are",
    "Q: What is the boiling point of water?\nA:",
)
OTHER_PROMPTS = (
    "My favourite recipe begins with",
    "class Stack:\n    def __init__(self):\n",
    "The history of Rome",
    "SELECT name FROM",
    "Dear Sir or Madam,",
    "for i in range(10):\n",
    "The moon is",
    "1, 1, 2, 3, 5, 8,",
)
"""What rounding does is found with these, not with those that are compared."""
_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Texts:
    prompts: Sequence[str]
    num_tokens: int

    def params(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Each with a seed of its own, if it has one."""
        given = {"max_tokens": self.num_tokens, **params}
        seeds = [{"seed": params["seed"] + number} if "seed" in params else {} for number in self._numbers]
        return [{**given, **seed} for seed in seeds]

    def seeds(self, params: dict[str, Any]) -> list[int]:
        if "seed" in params:
            return [(params["seed"] + number) & _SEED_MASK for number in self._numbers]
        return [seed_of(str(number), SALT) for number in self._numbers]

    @property
    def _numbers(self) -> range:
        return range(len(self.prompts))


class Comparison:
    def __init__(self, target: Target, texts: Texts) -> None:
        self._target, self._texts = target, texts
        self._logs = target.setup.dtype != "float32"
        self._rounding = rounding(target, texts.num_tokens) if self._logs else 0.0

    def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        """A case, without the draft and with it."""
        prompts, given = self._texts.prompts, self._texts.params(params)
        self._target.detach()
        with logged_scores() if self._logs else nullcontext() as log:
            alone = self._target.generate(prompts, given)
        self._target.attach()
        before = self._target.report()
        drafted = self._target.generate(prompts, given)
        after = self._target.report()
        counted = {name: value - before.get(name, 0) for name, value in after.items()}
        found = {
            "texts": len(alone),
            "equal": sum(a == b for a, b in zip(alone, drafted, strict=True)),
            **_speculation(counted, sum(map(len, drafted))),
        }
        if log is not None:
            found |= self._explained(log, params, alone, drafted)
        is_stock_like = params["temperature"] == 0 or (self._target.setup.runner == "v2" and "seed" in params)
        return found | ({"params": params, "tokens": alone} if is_stock_like else {})

    def _explained(
        self, log: ScoreLog, params: dict[str, Any], alone: list[list[int]], drafted: list[list[int]]
    ) -> dict[str, Any]:
        lengths = self._target.prompt_lengths(self._texts.prompts)
        keys = zip(self._texts.seeds(params), lengths, strict=True)
        pairs = dict(zip(keys, zip(alone, drafted, strict=True), strict=True))
        shown = differences(log, pairs, 2 * self._rounding / (params["temperature"] or 1.0))
        return {"differences": shown, "unexplained": sum(each["gap"] > each["bound"] for each in shown)}


def rounding(target: Target, num_tokens: int) -> float:
    """The most that a logit differs by between a text alone and beside others, without a draft."""
    texts = Texts(OTHER_PROMPTS, num_tokens)
    params = {"temperature": 0.0, "seed": 1}
    given, lengths = texts.params(params), target.prompt_lengths(OTHER_PROMPTS)
    target.detach()
    with logged_scores() as single:
        alone = [
            target.generate([prompt], [each])[0] for prompt, each in zip(OTHER_PROMPTS, given, strict=True)
        ]
    with logged_scores() as many:
        together = target.generate(OTHER_PROMPTS, given)
    return single.moved(many, common_keys(texts.seeds(params), lengths, alone, together))


def _speculation(counted: dict[str, float], num_tokens: int) -> dict[str, Any]:
    misses = {name.partition(".")[2]: counted[name] for name in counted if name.startswith("spec_misses.")}
    rounds = counted["spec_hits"] + sum(misses.values())
    return {
        "hits": counted["spec_hits"],
        "misses": {cause: number for cause, number in misses.items() if number},
        "share of hits": round(counted["spec_hits"] / rounds, 3) if rounds else 0.0,
        "tokens a round": round(num_tokens / counted["rounds"], 2) if counted["rounds"] else 0.0,
        "drafted": counted.get("spec_decode_num_draft_tokens.draft", 0),
        "accepted": counted.get("spec_decode_num_accepted_tokens.draft", 0),
        "from the text": counted.get("spec_decode_num_draft_tokens.ngram", 0),
        "padding": counted["spec_padding_tokens"],
    }


def cases(temperatures: list[float], *, others: bool, unseeded: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    for temperature in temperatures:
        yield f"T={temperature} seeded", {"temperature": temperature, "seed": 7}
        if temperature > 0 and unseeded:
            yield f"T={temperature} unseeded", {"temperature": temperature}
    if not others:
        return
    yield "grammar", {"temperature": 0.8, "seed": 3, "regex": "([a-z]{1,8}[ ,])+", "ignore_eos": False}
    yield (
        "truncated, penalties, minimum",
        {
            "temperature": 0.9,
            "top_p": 0.9,
            "top_k": 50,
            "presence_penalty": 0.6,
            "min_tokens": 4,
            "seed": -20,
        },
    )


def _compare(arguments: argparse.Namespace, setup: Setup, texts: Texts, record: Record) -> None:
    draft = Draft(arguments.draft, arguments.draft_dtype or setup.dtype)
    draft.start()
    try:
        target = Target(setup, draft.address, patience=arguments.patience)
        target.wait_for_draft(300)
        compare = Comparison(target, texts)
        # Without a seed, a request's id decides; under asynchronous scheduling no id comes again.
        others, unseeded = not arguments.plain, not arguments.asynchronous
        for name, params in cases(arguments.temperatures, others=others, unseeded=unseeded):
            _once(record, name, lambda params=params: compare(params))  # type: ignore[misc]
    finally:
        draft.kill()


def _compare_stock(setup: Setup, texts: Texts, record: Record, *, is_control: bool) -> None:
    """With the tokens that the record has."""
    lines = [each for each in record.lines() if each["run"] == record.run and "tokens" in each]
    known = {each["case"]: each for each in lines}
    if not known:
        raise SystemExit(f"{record.path} has no tokens of this run to compare with: run it first")
    own = {"speculative_config": speculation(setup.runner, setup.lookahead)} if is_control else {}
    target = StockTarget(setup, **own)
    who = "vLLM's own speculation" if is_control else "stock vLLM"

    def compare(found: dict[str, Any]) -> dict[str, Any]:
        tokens = target.generate(texts.prompts, texts.params(found["params"]))
        same = [a == b for a, b in zip(tokens, found["tokens"], strict=True)]
        return {"texts": len(tokens), "equal": sum(same)}

    for name, found in known.items():
        _once(record, f"{who}, {name}", lambda found=found: compare(found))  # type: ignore[misc]


def _once(record: Record, name: str, compare: Callable[[], dict[str, Any]]) -> None:
    if record.find(name) is None:
        found = {**compare(), "vllm": _version()}
        record.add(name, found)
        print(name, {key: value for key, value in found.items() if key != "tokens"}, flush=True)


def _version() -> str:
    """Of the vLLM that was imported."""
    import vllm

    return str(vllm.__version__)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--draft-dtype", default="")
    parser.add_argument("--head-dtype", default="")
    parser.add_argument("--texts", type=Path, help='prompts from lines of {"text": …}')
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, default=len(PROMPTS))
    parser.add_argument("--lookahead", type=int, default=4)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 0.7, 1.0])
    parser.add_argument("--plain", action="store_true", help="temperatures only: no grammar, no truncation")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--runner", choices=("v1", "v2"), default="v1")
    parser.add_argument("--asynchronous", action="store_true", help="with V2: asynchronous scheduling")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds that a step waits for a word")
    return parser.parse_args()


def main() -> None:
    arguments = _parsed()
    setup = Setup(
        target=arguments.target,
        dtype=arguments.dtype,
        head_dtype=arguments.head_dtype,
        lookahead=arguments.lookahead,
        padded=arguments.padded,
        tensor_parallel=arguments.tensor_parallel,
        pipeline_parallel=arguments.pipeline_parallel,
        at_once=arguments.at_once,
        runner=arguments.runner,
        is_async=arguments.asynchronous,
    )
    prepare(setup.ranks)
    prompts: Sequence[str] = PROMPTS
    if arguments.texts is not None:
        prompts = [json.loads(line)["text"] for line in arguments.texts.read_text().splitlines()]
    texts = Texts(prompts[: arguments.prompts], arguments.tokens)
    kept = ("dtype", "head_dtype", "lookahead", "padded", "tensor_parallel", "pipeline_parallel", "at_once")
    run = {
        "target": arguments.target.name,
        "draft": arguments.draft.name,
        "prompts": arguments.texts.name if arguments.texts else "",
        "tokens": arguments.tokens,
        **{name: getattr(setup, name) for name in kept},
        "runner": setup.runner,
        "asynchronous": setup.is_async,
    }
    record = Record(arguments.record, run)
    if arguments.stock or arguments.control:
        _compare_stock(setup, texts, record, is_control=arguments.control)
    else:
        _compare(arguments, setup, texts, record)


if __name__ == "__main__":
    main()
