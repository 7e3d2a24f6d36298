"""Runs a row and compares everything a user sees with plain decoding: one request at a time, nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ssd.engine.outputs import CompletionOutput, Increment, RequestOutput
from ssd.engine.request import Request
from ssd.sampling import mix_seed
from tests.exact.engine import MAX_MODEL_LEN, Seen, TargetWithDrafts, counted_time
from tests.exact.requests import MAX_TOKENS, Asked
from tests.exact.rows import Row

Tokens = tuple[int, ...]
PLAIN = Row(
    seed=0, mode="ar", weights="", tree=False, draft="none", draft_fault="none", batch=1, room="plenty",
    cache=False, prompts="whole", async_forward=False, fair_sharing=False,
)  # fmt: skip


@dataclass(slots=True)
class Ran:
    row: Row
    outputs: dict[str, RequestOutput]
    faults: list[str]
    seen: Seen
    hits: int = 0
    losses: int = 0
    frames: int = 0

    @property
    def preemptions(self) -> int:
        return sum(each.num_preemptions for each in self.outputs.values())

    @property
    def cached(self) -> int:
        return sum(each.num_cached_tokens for each in self.outputs.values())

    @property
    def summary(self) -> str:
        counts = {name: getattr(self, name) for name in ("preemptions", "cached", "hits", "losses", "frames")}
        return f"{self.num_tokens} tokens, {counts}, {self.seen}"

    @property
    def num_tokens(self) -> int:
        return sum(len(each.token_ids) for output in self.outputs.values() for each in output.outputs)


class Exact:
    """Plain outputs of one target, kept; and rows against them."""

    def __init__(self, bench: TargetWithDrafts) -> None:
        self.bench = bench
        self._plain: dict[tuple[Asked, Tokens], RequestOutput] = {}

    def request(self, asked: Asked, name: str = "", prompt: Tokens = (), **settings: Any) -> Request:
        """`prompt`: another one than its own."""
        ids = prompt or asked.prompt_ids(self.bench.ids)
        return self.bench.factory.request(ids, asked.params, name or f"r{asked.seed}", **settings)

    def plain(self, asked: Asked, prompt: Tokens = ()) -> RequestOutput:
        if (asked, prompt) not in self._plain:
            ran = self._run(PLAIN, [(0, self.request(asked, prompt=prompt))], {})
            assert not ran.faults, ran.faults
            (self._plain[asked, prompt],) = ran.outputs.values()
        return self._plain[asked, prompt]

    def run(self, row: Row, asked: Sequence[Asked] = ()) -> Ran:
        """`asked`: other requests than those of the row."""
        asked = asked or row.asked
        expected = {f"r{each.seed}": self.plain(each) for each in asked}
        # Two requests with the same prompt, the second later: its prompt is in the cache.
        again = asked[0]
        expected["again"] = self.plain(again)
        # One is aborted.
        expected["aborted"] = self.plain(asked[-1])
        arrivals = [
            (max(0, place - row.batch), self._of(row, each, place)) for place, each in enumerate(asked)
        ]
        arrivals += [(9, self.request(again, "again")), (2, self.request(asked[-1], "aborted"))]
        if row.cache:
            # A prompt that goes through a text which was generated here.
            first = expected["again"]
            prompt = (*first.prompt_token_ids, *first.outputs[0].token_ids)[: MAX_MODEL_LEN - MAX_TOKENS]
            expected["follower"] = self.plain(again, prompt)
            arrivals.append((30, self.request(again, "follower", prompt)))
        truths = {
            (output.prompt_token_ids, mix_seed(output.seed, each.index)): each.token_ids
            for output in expected.values()
            for each in output.outputs
        }
        ran = self._run(row, arrivals, truths)
        for name, output in expected.items():
            if name != "aborted":
                ran.faults += _differences(name, ran.outputs[name], output)
        ran.faults += _not_a_beginning(ran.outputs["aborted"], expected["aborted"])
        return ran

    def _of(self, row: Row, asked: Asked, place: int) -> Request:
        """Some requests want no draft; under fair sharing every second one has a caller with several."""
        group = "crowd" if row.fair_sharing and place % 2 else ""
        return self.request(asked, speculation=place % 5 != 3, group=group)

    def _run(self, row: Row, arrivals: Sequence[tuple[int, Request]], truths: dict[Any, Any]) -> Ran:
        engine = self.bench.core(row, truths)
        core, done, increments = engine.core, dict[str, RequestOutput](), list[Increment]()
        waiting, step, faults = sorted(arrivals, key=lambda pair: pair[0]), 0, list[str]()
        with counted_time(engine.target.clock):
            while waiting or core.has_work:
                while waiting and waiting[0][0] <= step:
                    core.add(waiting.pop(0)[1])
                outputs = [core.step()]
                if step == 8:
                    outputs.append(core.abort("aborted"))
                for each in outputs:
                    increments += each.increments
                    done |= {output.request_id: output for output in each.finished}
                core.check_integrity()
                step += 1
                assert step < 4000, f"{row} does not end"
            done |= {output.request_id: output for output in core.flush().finished}
            ran = Ran(row, done, faults, engine.target.seen)
            stats = core.stats
            ran.hits = stats.speculation.hits
            if stats.draft is not None:
                ran.losses, ran.frames = stats.draft.num_losses, stats.draft.num_frames
            engine.check_nothing_is_left()
            core.close()
        for name, output in done.items():
            for made in output.outputs:
                mine = [i for i in increments if (i.request_id, i.index) == (name, made.index)]
                faults += [f"{name}/{made.index}: {fault}" for fault in _bad_stream(mine, made)]
        return ran


def _differences(name: str, found: RequestOutput, plain: RequestOutput) -> Iterator[str]:
    if found.outputs != plain.outputs:
        for mine, other in zip(found.outputs, plain.outputs, strict=True):
            if mine != other:
                yield f"{name}: {mine} is not {other}"
    if found.prompt_logprobs != plain.prompt_logprobs:
        yield f"{name}: other scores of the prompt"
    if found.prompt_token_ids != plain.prompt_token_ids or found.seed != plain.seed:
        yield f"{name}: another prompt or seed"
    if found.timings.num_output_tokens != plain.timings.num_output_tokens:
        yield f"{name}: {found.timings.num_output_tokens} output tokens"


def _not_a_beginning(found: RequestOutput, plain: RequestOutput) -> Iterator[str]:
    for mine, other in zip(found.outputs, plain.outputs, strict=True):
        is_whole = mine == other
        is_part = mine.finish_reason == "abort" and mine.token_ids == other.token_ids[: len(mine.token_ids)]
        if not (is_whole or is_part):
            yield f"aborted: {mine} does not begin {other}"


def _bad_stream(increments: Sequence[Increment], output: CompletionOutput) -> Iterator[str]:
    """Increments are the output, and its counts add up."""
    if "".join(each.text for each in increments) != output.text:
        yield "increments have another text"
    if tuple(token for each in increments for token in each.token_ids) != output.token_ids:
        yield "increments have other tokens"
    if output.logprobs is not None:
        scores = tuple(score for each in increments for score in each.logprobs or ())
        if scores != output.logprobs or len(scores) != len(output.token_ids):
            yield "increments have other log-probabilities"
    ends = [(each.finish_reason, each.stop_reason) for each in increments if each.finish_reason is not None]
    if ends != [(output.finish_reason, output.stop_reason)]:
        yield f"increments end with {ends}"
    spent, num_tokens = output.speculation, len(output.token_ids)
    if spent.accepted != sum(origin != "target" for origin in output.origins):
        yield f"{spent} and origins {output.origins}"
    if len(output.origins) != num_tokens or spent.rounds + spent.accepted - num_tokens not in (0, 1):
        yield f"{spent} for {num_tokens} tokens"
    if spent.accepted > spent.drafted:
        yield f"{spent}"
