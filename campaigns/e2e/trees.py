"""The engine's tokens with trees of every kind under verification, against those of plain decoding.

    python -m campaigns.e2e.trees --model MODEL [--requests 120] [--max-tokens 24] [--loose]
        [--record FILE.jsonl]

A proposer that knows the truth offers trees around it (`tests/oracle/tree_shapes.py`), through the real
engine: alone, in batches, preempted, with prompts from the prefix cache, with few blocks and slots, on steps
that are replayed and on a runner that goes on by itself. Deterministic, every bit of every log-probability
must be the same; loose, every token.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from campaigns.e2e.invariance import TEXT, make_params
from ssd.attention.paged import PagedBackend
from ssd.config import Precision, RunnerConfig
from ssd.decoding.decoder import Decoder
from ssd.decoding.proposer import ContextOf, GrammarStates, Proposer, Rounds
from ssd.decoding.rows import Decided, DecodeRow, Speculation, StepTimes
from ssd.decoding.tree_slots import TreeSlots
from ssd.draft.client.proposals import first_path
from ssd.engine.core import EngineCore
from ssd.engine.grammar import Grammars
from ssd.engine.outputs import RequestOutput
from ssd.engine.prompts import RequestFactory
from ssd.engine.request import Request
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.buckets import Buckets
from ssd.runtime.captured import CapturedRunner
from ssd.runtime.eager import EagerRunner
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import Runner
from ssd.sampling import SamplingParams, mix_seed
from ssd.sampling.constraint import Grammar
from ssd.selftest.recording import Recording
from tests.engine.test_async_runner import LaterRunner
from tests.oracle.tree_shapes import some_speculation

MAX_MODEL_LEN, BLOCK, NUM_TREES = 160, 4, 6
NUM_BLOCKS = 8 * MAX_MODEL_LEN // BLOCK
GRAMMARS = (
    Grammar("regex", "[ab]{3}(c|d)[0-9]{2,8}"),
    Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
)


@dataclass(frozen=True, slots=True)
class Circumstance:
    name: str
    batch: int = 8
    num_blocks: int = NUM_BLOCKS
    prefix_caching: bool = True
    budget: int = 512
    runner: str = "eager"
    num_trees: int = NUM_TREES


CIRCUMSTANCES = (
    Circumstance("alone", batch=1),
    Circumstance("batch of 8, fewer tree slots than sequences", num_trees=2),
    Circumstance("tree slots for each", batch=NUM_TREES),
    Circumstance("preempted", num_blocks=2 + MAX_MODEL_LEN // BLOCK),
    Circumstance("no prefix cache", prefix_caching=False),
    Circumstance("a budget of 12 tokens", budget=12),
    Circumstance("a runner that goes on by itself", runner="later"),
)
REPLAYED = Circumstance("steps that are replayed", batch=4, runner="replayed")
"""Not deterministic on CPUs."""


@dataclass(slots=True)
class Seen:
    """What was verified: otherwise equal tokens could mean that no tree ever was."""

    trees: int = 0
    nodes: int = 0
    accepted: int = 0
    aside: int = 0
    """Trees of which another path than the first was taken."""
    preemptions: int = 0
    cached: int = 0
    tokens: int = 0
    different: int = 0


class KnowsTheTruth(Proposer):
    is_drafting = True

    def __init__(self, truths: dict[tuple[tuple[int, ...], int], tuple[int, ...]], vocab_size: int) -> None:
        self._truths = truths
        self._vocab_size = vocab_size
        self._num_asked = 0
        self.seen = Seen()

    def propose(
        self, seq_ids: Sequence[int], context_of: ContextOf, states: GrammarStates
    ) -> list[Speculation]:
        found = []
        for seq_id in seq_ids:
            row = context_of(seq_id).sampling
            truth = self._truths[tuple(row.prompt), row.seed][len(row.output) :]
            self._num_asked += 1
            drawn = random.Random(self._num_asked)
            found.append(some_speculation(drawn, truth, partial(drawn.randrange, self._vocab_size)))
        return found

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided], times: StepTimes) -> Rounds:
        for row, each in zip(rows, decided, strict=True):
            if row.parents is None:
                continue
            self.seen.trees += 1
            self.seen.nodes += row.num_drafted
            self.seen.accepted += len(each.branch)
            first = first_path(range(row.num_drafted), row.parents)
            self.seen.aside += each.branch != first[: len(each.branch)]
        return super().settle(rows, decided, times)


class Bench:
    """One loaded target, whose requests run under all circumstances."""

    def __init__(
        self, model: str, *, deterministic: bool, dtype: str = "auto", precision: Precision = "model"
    ) -> None:
        self.deterministic = deterministic
        config = RunnerConfig(
            model=model,
            device="cpu",
            dtype=dtype,  # type: ignore[arg-type]
            precision=precision,
            block_size=BLOCK,
            num_blocks=NUM_BLOCKS,
            num_trees=NUM_TREES,
            max_model_len=MAX_MODEL_LEN,
            deterministic=deterministic,
        )
        self.loaded: LoadedModel = load_model(config)
        checkpoint = self.loaded.checkpoint
        self.tokenizer: Any = checkpoint.tokenizer()
        self.vocab_size = checkpoint.config.vocab_size
        end_ids = checkpoint.end_ids(self.tokenizer)
        self.grammars = Grammars(self.tokenizer, end_ids, self.vocab_size)
        self.factory = RequestFactory(
            self.tokenizer, end_ids, self.vocab_size, random.Random(0), self.grammars, MAX_MODEL_LEN
        )

    def requests(self, count: int, max_tokens: int) -> list[Request]:
        """Half of the prompts share a beginning."""
        ids = list(self.tokenizer(TEXT * 4).input_ids)
        drawn, found = random.Random(1), []
        for index in range(count):
            start, length = drawn.choice([0, drawn.randrange(60)]), drawn.randint(1, 70)
            params = _params(index, max_tokens)
            found.append(self.factory.request(ids[start : start + length], params, f"r{index}"))
        return found

    def followers(self, outputs: Sequence[RequestOutput], max_tokens: int) -> list[Request]:
        """Whose prompts go through texts that were generated: their blocks are in the cache."""
        found = []
        for index, output in enumerate(outputs):
            text = [*output.prompt_token_ids, *output.outputs[0].token_ids]
            params = _params(index + 1, max_tokens)
            found.append(self.factory.request(text[: MAX_MODEL_LEN - max_tokens], params, f"f{index}"))
        return found

    def plain(self, requests: Sequence[Request]) -> list[RequestOutput]:
        how = Circumstance("plain", prefix_caching=False)
        return self._waves(how, Decoder(self.loaded.runner), [requests])[0]

    def with_trees(
        self, requests: Sequence[Request], followers: Sequence[Request], how: Circumstance,
        expected: Sequence[RequestOutput],
    ) -> tuple[list[RequestOutput], Seen]:  # fmt: skip
        truths = {}
        for request, output in zip([*requests, *followers], expected, strict=True):
            for each in output.outputs:
                truths[request.prompt_token_ids, mix_seed(request.seed, each.index)] = each.token_ids
        proposer = KnowsTheTruth(truths, self.vocab_size)
        tree_slots = TreeSlots.of(self.loaded.pool)
        tree_slots = replace(tree_slots, starts=tree_slots.starts[: how.num_trees])
        decoder = Decoder(self._runner(how), proposer, tree_slots)
        outputs = [each for wave in self._waves(how, decoder, [requests, followers]) for each in wave]
        seen = proposer.seen
        seen.preemptions = sum(each.num_preemptions for each in outputs)
        seen.cached = sum(each.num_cached_tokens for each in outputs)
        seen.tokens = sum(len(each.token_ids) for output in outputs for each in output.outputs)
        pairs = zip(outputs, expected, strict=True)
        seen.different = sum(not self._are_equal(*pair) for pair in pairs)
        return outputs, seen

    def _are_equal(self, one: RequestOutput, other: RequestOutput) -> bool:
        if self.deterministic:
            return one.outputs == other.outputs
        pairs = zip(one.outputs, other.outputs, strict=True)
        return all(
            (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason) for a, b in pairs
        )

    def _runner(self, how: Circumstance) -> Runner:
        eager = self.loaded.runner
        assert isinstance(eager, EagerRunner)
        if how.runner == "later":
            return LaterRunner(eager)
        if how.runner == "replayed":
            buckets = Buckets(MAX_MODEL_LEN // BLOCK, (8, 32, 96))
            return CapturedRunner(
                eager, PagedBackend(self.loaded.pool), self.loaded.pool, buckets, Recording()
            )
        return eager

    def _waves(
        self, how: Circumstance, decoder: Decoder, waves: Sequence[Sequence[Request]]
    ) -> list[list[RequestOutput]]:
        limits = SchedulerLimits(
            max_num_seqs=how.batch,
            max_num_batched_tokens=max(how.budget, how.batch),
            max_model_len=MAX_MODEL_LEN,
            cache_generated=not self.deterministic,
        )
        blocks = BlockManager(how.num_blocks, BLOCK, enable_prefix_caching=how.prefix_caching)
        core = EngineCore(decoder, blocks, limits, self.tokenizer, grammars=self.grammars.constraints)
        found = []
        for requests in waves:
            for request in requests:
                core.add(request)
            done: dict[str, RequestOutput] = {}
            while core.has_work:
                done.update({output.request_id: output for output in core.step().finished})
                core.check_integrity()
            found.append([done[request.request_id] for request in requests])
        return found


def _params(index: int, max_tokens: int) -> SamplingParams:
    """Of every kind; some with several sequences, stop strings or a grammar."""
    params = make_params(index, max_tokens)
    if index % 8 == 3:
        return replace(params, n=2, stop=("e", "the"), min_tokens=0)
    if index % 8 == 6:
        return SamplingParams(
            temperature=params.temperature,
            seed=index,
            max_tokens=max_tokens,
            grammar=GRAMMARS[index // 8 % len(GRAMMARS)],
            logprobs=1,
        )
    return params


def compare(
    bench: Bench, num_requests: int, max_tokens: int, circumstances: Sequence[Circumstance]
) -> Iterator[tuple[str, Seen]]:
    """Of each circumstance, when it is over, what was seen."""
    requests = bench.requests(num_requests, max_tokens)
    first = bench.plain(requests)
    followers = bench.followers(first[: num_requests // 3], max_tokens)
    expected = [*first, *bench.plain(followers)]
    for how in circumstances:
        yield how.name, bench.with_trees(requests, followers, how, expected)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--loose", action="store_true", help="not deterministic, in float32")
    parser.add_argument("--record", type=Path, help="a line for each circumstance")
    options = parser.parse_args()
    bench = Bench(
        options.model, deterministic=not options.loose, dtype="float32" if options.loose else "auto"
    )
    hows = (*CIRCUMSTANCES, REPLAYED) if options.loose else CIRCUMSTANCES
    run = {
        "model": Path(options.model).name,
        "requests": options.requests,
        "max_tokens": options.max_tokens,
        "deterministic": not options.loose,
    }
    num_different = 0
    for name, seen in compare(bench, options.requests, options.max_tokens, hows):
        print(f"{name:40} {seen}", flush=True)
        num_different += seen.different
        if options.record:
            Record(options.record, run).add(name, asdict(seen))
    sys.exit(num_different > 0)


if __name__ == "__main__":
    main()
