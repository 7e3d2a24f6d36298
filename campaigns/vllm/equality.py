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
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from campaigns.vllm.cases import OTHER_PROMPTS, PROMPTS, Texts, cases
from campaigns.vllm.real import Draft, Setup, StockTarget, Target, prepare
from campaigns.vllm.ties import ScoreLog, common_keys, differences, logged_scores
from ssd.integrations.vllm import speculation


class Comparison:
    def __init__(self, target: Target, texts: Texts) -> None:
        self._target, self._texts = target, texts
        # The scores of V2's sampler are not logged: there, differences are only counted.
        self._logs = target.setup.dtype != "float32" and target.setup.runner == "v1"
        self._rounding = rounding(target, texts.num_tokens) if self._logs else 0.0

    def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        """A case, without the draft and with it."""
        prompts, given = self._texts.asked(params), self._texts.params(params)
        self._target.detach()
        with logged_scores() if self._logs else nullcontext() as log:
            alone = self._target.generate(prompts, given)
        self._target.attach()
        before, of_vllm = self._target.report(), self._target.counted()
        drafted = self._target.generate(prompts, given)
        counted = _since(before, self._target.report())
        found = {
            **_since(of_vllm, self._target.counted()),
            "texts": len(alone),
            "equal": sum(a == b for a, b in zip(alone, drafted, strict=True)),
            **_speculation(counted),
        }
        if log is not None:
            found |= self._explained(log, params, alone, drafted)
        is_stock_like = params["temperature"] == 0 or (self._target.setup.runner == "v2" and "seed" in params)
        return found | ({"params": params, "tokens": alone} if is_stock_like else {})

    def _explained(
        self, log: ScoreLog, params: dict[str, Any], alone: list[list[int]], drafted: list[list[int]]
    ) -> dict[str, Any]:
        lengths = self._target.prompt_lengths(self._texts.asked(params))
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


def _since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def _speculation(counted: dict[str, float]) -> dict[str, Any]:
    misses = {name.partition(".")[2]: counted[name] for name in counted if name.startswith("spec_misses.")}
    rounds = counted["spec_hits"] + sum(misses.values())
    return {
        "hits": counted["spec_hits"],
        "misses": {cause: number for cause, number in misses.items() if number},
        "share of hits": round(counted["spec_hits"] / rounds, 3) if rounds else 0.0,
        "drafted": counted.get("spec_decode_num_draft_tokens.draft", 0),
        "accepted": counted.get("spec_decode_num_accepted_tokens.draft", 0),
        "from the text": counted.get("spec_decode_num_draft_tokens.ngram", 0),
        "padding": counted["spec_padding_tokens"],
    }


def _compare(arguments: argparse.Namespace, setup: Setup, texts: Texts, record: Record) -> None:
    draft = Draft(arguments.draft, arguments.draft_dtype or setup.dtype)
    draft.start()
    try:
        target = Target(setup, draft.address, patience=arguments.patience)
        target.wait_for_draft(300)
        compare = Comparison(target, texts)
        for name, params in _chosen_cases(arguments):
            _once(record, name, lambda params=params: compare(params))  # type: ignore[misc]
    finally:
        draft.kill()


def _chosen_cases(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    # Without a seed, a request's id decides; under asynchronous scheduling no id comes again.
    for name, params in cases(arguments.temperatures, unseeded=not arguments.asynchronous):
        if any(word in name for word in arguments.cases):
            yield name, params


def _compare_stock(arguments: argparse.Namespace, setup: Setup, texts: Texts, record: Record) -> None:
    """With the tokens that the record has."""
    lines = [each for each in record.lines() if each["run"] == record.run and "tokens" in each]
    known = {each["case"]: each for each in lines if any(word in each["case"] for word in arguments.cases)}
    if not known:
        raise SystemExit(f"{record.path} has no tokens of this run to compare with: run it first")
    own = {"speculative_config": speculation(setup.runner, setup.lookahead)} if arguments.control else {}
    target = StockTarget(setup, **own)
    who = "vLLM's own speculation" if arguments.control else "stock vLLM"

    def compare(found: dict[str, Any]) -> dict[str, Any]:
        tokens = target.generate(texts.asked(found["params"]), texts.params(found["params"]))
        same = [a == b for a, b in zip(tokens, found["tokens"], strict=True)]
        return {"texts": len(tokens), "equal": sum(same)}

    for name, found in known.items():
        _once(record, f"{who}, {name}", lambda found=found: compare(found))  # type: ignore[misc]


def _once(record: Record, name: str, compare: Callable[[], dict[str, Any]]) -> None:
    if record.find(name) is None:
        found = compare()
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
    parser.add_argument("--cases", nargs="*", default=[""], help="those whose names have one of these words")
    parser.add_argument("--kv-blocks", type=int, default=0, help="few, so that vLLM preempts requests")
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
        kv_blocks=arguments.kv_blocks,
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
        "kv_blocks": setup.kv_blocks,
        "vllm": _version(),
    }
    record = Record(arguments.record, run)
    if arguments.stock or arguments.control:
        _compare_stock(arguments, setup, texts, record)
    else:
        _compare(arguments, setup, texts, record)


if __name__ == "__main__":
    main()
