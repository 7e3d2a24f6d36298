"""The same requests under other circumstances: do they give the same tokens?

    python -m campaigns.e2e.invariance --model MODEL --requests 200 [--loose]

Runs seeded requests with mixed parameters alone, in a batch of 16, preempted, with and
without prefix cache and chunked prefill, and compares tokens. In deterministic mode no
difference is allowed; with --loose (not deterministic) each first difference is shown
with the gap, in logits, of the tie that rounding decided.
"""

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ssd.attention.inputs import PlainInput
from ssd.config import EngineConfig
from ssd.decoding.decoder import Decoder
from ssd.engine.core import EngineCore
from ssd.engine.outputs import RequestOutput
from ssd.engine.prompts import RequestFactory
from ssd.engine.request import Request
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward
from ssd.sampling import History, SamplingParams, SamplingRow, process_logits
from tests.sampling.noise import gumbel_noise

TEXT = (
    "You are a careful assistant. Answer briefly and say what you do not know. "
    "The quick brown fox jumps over the lazy dog while the engine counts its tokens, "
    "def add(a, b): return a + b, and every sum comes out the same. "
)
MAX_MODEL_LEN = 256
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Circumstance:
    name: str
    batch: int = 16
    num_blocks: int = 16 * MAX_MODEL_LEN // BLOCK
    prefix_caching: bool = True
    chunked: bool = True
    budget: int = 256


CIRCUMSTANCES = (
    Circumstance("alone", batch=1),
    Circumstance("batch of 16"),
    Circumstance("preempted", num_blocks=2 + MAX_MODEL_LEN // BLOCK),
    Circumstance("no prefix cache", prefix_caching=False),
    Circumstance("chunks of at most 24", budget=24),
    Circumstance("no chunked prefill", chunked=False),
)


@dataclass(frozen=True, slots=True)
class Difference:
    circumstance: str
    request: int
    step: int
    tie: str
    gap: float


def make_params(index: int, max_tokens: int) -> SamplingParams:
    draw = random.Random(index)
    return SamplingParams(
        temperature=(0.0, 0.7, 1.0)[index % 3],
        seed=index * 7919,
        max_tokens=max_tokens,
        top_k=draw.choice([0, 0, 20]),
        top_p=draw.choice([1.0, 1.0, 0.9]),
        min_p=draw.choice([0.0, 0.0, 0.05]),
        repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
        presence_penalty=draw.choice([0.0, 0.0, 0.5]),
        frequency_penalty=draw.choice([0.0, 0.0, 0.3]),
        logit_bias={11: 2.0, 13: -3.0} if index % 7 == 0 else None,
        bad_words=("fox",) if index % 11 == 0 else (),
        min_tokens=4 if index % 5 == 0 else 0,
        ignore_eos=index % 4 == 0,
        logprobs=2 if index % 6 == 0 else None,
    )


def make_requests(loaded: LoadedModel, count: int, max_tokens: int) -> list[Request]:
    """Prompts of 1 to 150 tokens; about half share a beginning, so that prefixes are found in the cache."""
    tokenizer = loaded.checkpoint.tokenizer()
    factory = RequestFactory(
        tokenizer, loaded.checkpoint.end_ids(tokenizer), loaded.checkpoint.config.vocab_size, random.Random(0)
    )
    ids = list(tokenizer(TEXT * 8).input_ids)
    draw = random.Random(1)
    requests = []
    for index in range(count):
        start, length = draw.choice([0, draw.randrange(100)]), draw.randint(1, 150)
        params = make_params(index, max_tokens)
        requests.append(factory.request(ids[start : start + length], params, str(index)))
    return requests


def run(
    loaded: LoadedModel, requests: Sequence[Request], how: Circumstance, *, deterministic: bool
) -> list[RequestOutput]:
    limits = SchedulerLimits(
        max_num_seqs=how.batch,
        max_num_batched_tokens=max(how.budget, how.batch),
        max_model_len=MAX_MODEL_LEN,
        enable_chunked_prefill=how.chunked,
        cache_generated=not deterministic,
    )
    blocks = BlockManager(how.num_blocks, BLOCK, enable_prefix_caching=how.prefix_caching)
    core = EngineCore(Decoder(loaded.runner), blocks, limits, loaded.checkpoint.tokenizer())
    for request in requests:
        core.add(request)
    done: dict[str, RequestOutput] = {}
    while core.has_work:
        done.update({output.request_id: output for output in core.step().finished})
    core.check_integrity()
    return [done[request.request_id] for request in requests]


def compare(
    loaded: LoadedModel,
    requests: Sequence[Request],
    baseline: Sequence[RequestOutput],
    other: Sequence[RequestOutput],
    name: str,
) -> list[Difference]:
    differences = []
    for index, (request, first, second) in enumerate(zip(requests, baseline, other, strict=True)):
        expected, got = first.outputs[0].token_ids, second.outputs[0].token_ids
        if expected != got:
            pairs = enumerate(zip(expected, got, strict=False))
            step = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(got)))
            differences.append(Difference(name, index, step, *_tie(loaded, request, expected[:step])))
    return differences


def _tie(loaded: LoadedModel, request: Request, output: tuple[int, ...]) -> tuple[str, float]:
    """Which tie was closest at a step, and how close, in logits.

    Either the two best scores (logits processed, over T, plus noise) nearly tie, or a token
    that would win stands next to the border that top_k, top_p or min_p draw.
    """
    tokens = [*request.prompt_token_ids, *output]
    table = list(range(-(-len(tokens) // BLOCK)))
    logits = forward(loaded.runner, [PlainInput(tokens, 0, table, 1, generated=False)])[0]
    untruncated = replace(request.params, top_k=0, top_p=1.0, min_p=0.0)
    rows = [
        SamplingRow(
            params,
            request.seed,
            len(tokens),
            request.prompt_token_ids,
            History(output),
            request.end_ids,
            request.bad_word_ids,
        )
        for params in (request.params, untruncated)
    ]
    kept, scores = (process_logits(logits, row) for row in rows)
    temperature = request.params.temperature or 1.0
    noise = torch.zeros_like(scores)
    if request.params.temperature > 0:
        noise = gumbel_noise([request.seed], [len(tokens)], len(scores))[0]
    best = (kept + noise).topk(2).values
    gaps = {"top-2": float(best[0] - best[1]) * temperature}
    floor = kept[kept > -math.inf].min()
    winner = int((kept + noise).argmax())
    would_win = (kept == -math.inf) & (scores + noise > best[0])
    near = torch.cat(((floor - scores[would_win]).flatten(), (scores[winner] - floor).reshape(1)))
    if request.params.truncated:
        gaps["border"] = float(near.min()) * temperature
    return min(gaps.items(), key=lambda item: item[1])


def load_for_ties(model: str) -> LoadedModel:
    """A loose model whose forwards tell how close a decision was."""
    config = EngineConfig(model=model, device="cpu", max_model_len=2048, num_blocks=2048 // BLOCK)
    return load_model(config.runner)


def tie_at(
    loaded: LoadedModel, prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> float:
    """How close the decision after some output was, in logits."""
    request = Request("tie", None, tuple(prompt), params, params.seed or 0, ())
    return _tie(loaded, request, tuple(output))[1]


def load(model: str, *, deterministic: bool, dtype: str = "auto", precision: str = "auto") -> LoadedModel:
    config = EngineConfig.from_settings(
        model,
        {
            "max_model_len": MAX_MODEL_LEN,
            "num_blocks": 16 * MAX_MODEL_LEN // BLOCK,
            "deterministic": deterministic,
            "device": "cpu",
            "dtype": dtype,
            "precision": precision,
        },
    )
    return load_model(config.runner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--loose", action="store_true", help="not deterministic: count and show ties")
    options = parser.parse_args()
    loaded = load(options.model, deterministic=not options.loose)
    requests = make_requests(loaded, options.requests, options.max_tokens)
    baseline = run(loaded, requests, CIRCUMSTANCES[0], deterministic=not options.loose)
    num_tokens = sum(len(output.outputs[0].token_ids) for output in baseline)
    print(f"{len(requests)} requests, {num_tokens} tokens, {'loose' if options.loose else 'deterministic'}")
    for how in CIRCUMSTANCES[1:]:
        outputs = run(loaded, requests, how, deterministic=not options.loose)
        found = compare(loaded, requests, baseline, outputs, how.name)
        preempted = sum(output.num_preemptions for output in outputs)
        cached = sum(output.num_cached_tokens for output in outputs)
        print(f"{how.name:24s} {len(found):3d} differ   ({preempted} preemptions, {cached} cached tokens)")
        for each in found:
            print(f"    request {each.request:3d} step {each.step:3d} {each.tie} gap {each.gap:.4f}")


if __name__ == "__main__":
    main()
