"""Sixteen requests that come, end, are aborted, preempted and reused: the draft's texts stay theirs.

A made-up vLLM drives real sessions, a real client and a real draft service; after each step each text that
the draft holds is compared with the request's own.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from ssd.draft.client import controller
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.messages import Hello
from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.sessions import Sessions
from tests.e2e.draft_in_memory import PEER, InMemoryDraft
from tests.vllm.records import new, params, scheduled

MOST = 16
VOCABULARY = 500
CHUNK = 8


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass
class Live:
    text: list[int]
    num_computed: int = 0
    drafted: list[int] = field(default_factory=list)


class MadeUpVllm:
    """Schedules at random, and decides tokens at random, often those that were drafted."""

    def __init__(self, seed: int, model: Path) -> None:
        self.chance, self.clock = random.Random(seed), Clock()
        hello = Hello.of(
            AutoTokenizer.from_pretrained(model), vocab_size=VOCABULARY, name="made up", max_model_len=128
        )
        self.draft = InMemoryDraft(model, hello, self.clock)
        # How long a lost draft stays away is drawn, and decides how much there is to compare.
        client = DraftClient(FixedSources(self.draft), lookahead=4, clock=self.clock, draw=lambda: 0.0)
        speculator = Speculator(client, lookahead=4, backup="none", clock=self.clock)
        self.sessions = Sessions(
            speculator, lambda _: 1, max_model_len=128, meter=Meter(exported=False), clock=self.clock
        )
        self.live: dict[str, Live] = {}
        self.finished: list[str] = []
        self.num_started = 0

    def step(self) -> None:
        begun = [self._arrival() for _ in range(self.chance.randrange(3)) if len(self.live) < MOST]
        for key in [key for key in self.live if self.chance.random() < 0.05]:
            self._end(key)
        begun = [each for each in begun if each.req_id in self.live]
        running = {key: self._num_rows(each) for key, each in self.live.items() if self.chance.random() < 0.9}
        for each in begun:
            running[each.req_id] = self._num_rows(self.live[each.req_id])
        drafted = {key: self.live[key].drafted for key in running if self.live[key].drafted}
        record = scheduled(*begun, finished=self.finished, running=running, drafted=drafted)
        self.finished = []
        self._through(record, {key: self._decide(key, rows) for key, rows in running.items()})

    def _through(self, record: SimpleNamespace, decided: dict[str, list[int]]) -> None:
        """One step as the worker goes through it."""
        self.sessions.speculator.client.pool.tend()
        self.sessions.begin(record)
        self.draft.pump(2)
        self.sessions.take_in()
        self.sessions.settle(list(decided), list(decided.values()))
        for key, tokens in decided.items():
            self.live[key].text.extend(tokens)
        for key, path in zip(*self.sessions.propose(), strict=True):
            each = self.live[key]
            if self.chance.random() < 0.1:  # Preempted: its text is computed again, what was drafted is lost.
                each.num_computed, path = 0, []
            each.drafted = path

    def end_all(self) -> None:
        for key in list(self.live):
            self._end(key)
        self._through(scheduled(finished=self.finished), {})
        self.draft.pump(5)

    def audit(self) -> int:
        """How many texts were compared."""
        self.draft.pump(3)
        client = self.sessions.speculator.client
        client.check_integrity()
        service = self.draft.service
        peer = service._peers.get(PEER) if service is not None else None
        held = {} if peer is None else peer.sessions
        known = {each.seq: key for key, each in client._sessions.items()}
        for seq, session in held.items():
            assert session.tokens == self.live[str(known[seq])].text
        return len(held)

    def _arrival(self) -> SimpleNamespace:
        # Ids of those who ended come again at once, and now and then a live one's.
        key = self.chance.choice([*self.finished, *list(self.live)[:1], f"r{self.num_started}"])
        self.num_started += 1
        prompt = [self.chance.randrange(VOCABULARY) for _ in range(self.chance.randint(1, 20))]
        self.live[key] = Live(list(prompt))
        return new(key, prompt, sampling_params=params(temperature=0.0, max_tokens=60))

    def _end(self, key: str) -> None:
        del self.live[key]
        self.finished.append(key)

    def _num_rows(self, each: Live) -> int:
        left = len(each.text) - each.num_computed
        return min(CHUNK, left) if left > 1 else 1 + len(each.drafted)

    def _decide(self, key: str, num_rows: int) -> list[int]:
        """What comes out of its rows; nothing while it reads."""
        each = self.live[key]
        if len(each.text) - each.num_computed > num_rows - len(each.drafted):
            each.num_computed += num_rows
            return []
        accepted = each.drafted[: self.chance.randint(0, len(each.drafted))]
        token = self.chance.randrange(VOCABULARY)
        known = self.sessions.speculator.client.paths([key], 8)[0].tokens
        if len(known) > len(accepted) == len(each.drafted) and self.chance.random() < 0.7:
            token = int(known[len(accepted)])
        each.drafted, each.num_computed = [], len(each.text) + len(accepted)
        return [*accepted, token]


@pytest.mark.parametrize("seed", range(3))
def test_what_the_draft_holds_is_what_requests_say(
    tiny_llama: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A model of random weights is sure of nothing.
    monkeypatch.setattr(controller, "_LEAST_CHANCE", 0.0)
    engine = MadeUpVllm(seed, tiny_llama)
    compared = 0
    for number in range(120):
        engine.step()
        if number % 40 == 25:
            engine.draft.kill()
        compared += engine.audit()
    engine.end_all()
    report = engine.sessions.report()
    assert engine.audit() == 0
    assert report["spec_sessions"] == 0
    assert report["draft_connects"] > 1
    assert compared > 150
    assert report["spec_decode_num_accepted_tokens.draft"] > 0
    assert report["spec_sessions_reopened"] > 0
