"""Targets of the simulated pool: the real speculator and client, with a rule in place of the forward.

A target decodes a batch of requests. In each round it proposes, waits as long as the verification takes,
reads once meanwhile, decides every token by the request's text, and settles. What a draft says can change
when a token comes, never which one: `Request.take` checks that, and `Target` that the client's copy of the
text is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from ssd.config import Backup
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import AddressSource, FixedSources, NamedSources, Sources
from ssd.draft.client.pool import DraftPool
from ssd.draft.client.proposals import DraftedTokens, depths_of, walk
from ssd.draft.client.speculator import Speculator, Verified
from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello, Sampling
from tests.pool.links import Network, opener
from tests.pool.texts import VOCAB, Grammar, Text, mixed
from tests.pool.versions import THIS, Version
from tests.pool.world import Process, ViolationError

TICK = 0.05
"""Seconds between two calls of `tend`, as in client.py."""
_LONGEST_PROMPTS = 8
"""One prompt in so many is long."""


@dataclass(frozen=True, slots=True)
class TargetPlan:
    name: str
    key: str = ""
    batch: int = 3
    lookahead: int = 4
    backup: Backup = "none"
    num_trees: int = 0
    round_seconds: float = 0.03
    row_seconds: float = 0.0002
    timeout: float = 3.0
    """Silence after which the client gives a connection up: more than a draft's heartbeats are apart."""
    surprises: int = 8
    forces: int = 0
    strays: int = 0
    prompt: int = 24
    """Tokens of a short prompt, at most."""
    long_prompt: int = 200
    tokens: int = 120
    """That a request generates, at most."""
    samplings: tuple[Sampling, ...] = (Sampling(seed=1),)
    by_name: bool = False
    """Finds its drafts by DNS."""


@dataclass(slots=True)
class Request:
    text: Text
    prompt: list[int]
    max_len: int
    begun_at: float
    decided: list[int] = field(default_factory=list)
    """The target's text, prompt included."""
    hit_at: float = float("-inf")
    num_rounds: int = 0
    _alone: list[int] = field(default_factory=list)
    """The text of the target alone."""

    def __post_init__(self) -> None:
        self.decided, self._alone = list(self.prompt), list(self.prompt)

    def outcome(self, path: DraftedTokens) -> list[int]:
        """Accepted tokens, then the target's own: what a verification of this speculation yields."""
        length = len(self.decided)
        decided = [self.text.after(self.decided[-1], length)]
        for token, depth in zip(path.tokens, depths_of(path.parents, len(path.tokens)), strict=True):
            decided.append(self.text.after(token, length + depth))
        nodes = walk(decided, path.tokens, path.parents)
        tokens = [*(path.tokens[node] for node in nodes), decided[nodes[-1] + 1 if nodes else 0]]
        return tokens[: self.max_len - length]

    def take(self, tokens: Sequence[int]) -> None:
        self.decided += tokens
        while len(self._alone) < len(self.decided):
            self._alone.append(self.text.after(self._alone[-1], len(self._alone)))
        if self.decided[-len(tokens) :] != self._alone[-len(tokens) :]:
            raise ViolationError("a token with drafts is another than without")

    @property
    def is_over(self) -> bool:
        return len(self.decided) >= self.max_len


class Ticks:
    """In place of the reconnect thread."""

    def __init__(self, process: Process, pool: DraftPool) -> None:
        self._process, self._pool, self._is_over = process, pool, False
        process.after(TICK, self._tick)

    def stop(self) -> None:
        self._is_over = True

    def _tick(self) -> None:
        if not self._is_over:
            self._pool.tend()
            self._process.after(TICK, self._tick)


class _Answered:
    """A lookup that has ended."""

    def is_alive(self) -> bool:
        return False


class Target:
    def __init__(
        self,
        network: Network,
        plan: TargetPlan,
        addresses: Sequence[str],
        look_up: Callable[[str], Sequence[str]],
        *,
        started_at: float = 0.0,
        instance: str = "first",
        version: Version = THIS,
    ) -> None:
        """`look_up`: in place of DNS."""
        world = network.world
        self.network, self.plan = network, plan
        self.process = Process(world, plan.name, started_at=started_at)
        self.random = world.random_of(f"requests of {instance}")
        self.hello = version.hello(Hello(PROTOCOL_VERSION, "a rule", VOCAB, plan.name, instance, 0))
        self._open = opener(network, self.process, plan.key, version.frame)
        self.client = DraftClient(
            self._sources(addresses, look_up),
            lookahead=plan.lookahead,
            clock=self.process.clock,
            sleep=lambda seconds: self.process.wait(seconds, lambda: False),
            draw=world.random_of(f"delays of {instance}").random,
            reconnector=lambda pool: Ticks(self.process, pool),
        )
        self.speculator = Speculator(
            self.client,
            lookahead=plan.lookahead,
            backup=plan.backup,
            num_trees=plan.num_trees,
            clock=self.process.clock,
        )
        self.requests: dict[int, Request] = {}
        self.batch = plan.batch
        self.most = 0
        """Requests that there were at once."""
        self.num_ended = self.num_rounds = self.num_hits = self.num_tokens = 0
        self.hit_at = float("-inf")
        self.is_stopped = False
        """It begins no further rounds."""
        self._ids = count()
        self.client.pool.start()
        self.process.do(self._round)

    @property
    def tenant(self) -> str:
        """As drafts know it."""
        return self.plan.key or f"{self.hello.name} {self.hello.instance}"

    def source(self, address: str) -> AddressSource:
        return AddressSource(
            address,
            self.hello,
            timeout=self.plan.timeout,
            clock=self.process.clock,
            open_socket=self._open,
        )

    def _sources(self, addresses: Sequence[str], look_up: Callable[[str], Sequence[str]]) -> Sources:
        if not self.plan.by_name:
            return FixedSources(*map(self.source, addresses))

        def answer(ask: Callable[[], None]) -> _Answered:
            ask()
            return _Answered()

        return NamedSources(
            "drafts", 1, self.source, look_up=look_up, clock=self.process.clock, start_thread=answer
        )

    def kill(self, *, machine: bool = False) -> None:
        self.process.end()
        for line in self.network.of(self.plan.name):
            if machine:
                line.note_silence()
            else:
                line.reset()

    def freeze(self, seconds: float) -> None:
        self.process.freeze(seconds)
        for line in self.network.of(self.plan.name):
            line.note_silence()
        self.network.world.after(seconds, self._thaw)

    def _thaw(self) -> None:
        if self.process.is_alive and not self.process.is_frozen:
            for line in self.network.of(self.plan.name):
                if not self.network.is_cut(self.plan.name, line.draft.host):
                    line.note_sound()

    def begin(self) -> None:
        chance, plan = self.random, self.plan
        is_long = chance.randrange(_LONGEST_PROMPTS) == 0
        length = chance.randint(1, plan.long_prompt if is_long else plan.prompt)
        # Some prompts begin alike, also those of other targets.
        first = chance.choice((3, 5, chance.randrange(2, VOCAB)))
        prompt = [2 + (first + place * (1 + first % 5)) % (VOCAB - 2) for place in range(length)]
        tokens = chance.randint(1, plan.tokens)
        text = Text(mixed(chance.randrange(2**40), 0), plan.surprises, plan.forces, plan.strays)
        request = Request(text, prompt, length + tokens, self.process.world.now)
        number = next(self._ids)
        if chance.randrange(10) == 0 and self.requests:
            # An id that comes again replaces the session that has it.
            number = chance.choice([*self.requests])
            self.num_ended += 1
        self.requests[number] = request
        self.most = max(self.most, len(self.requests))
        self.speculator.begin(number, prompt, (), chance.choice(plan.samplings), request.max_len)

    def abort(self) -> bool:
        """A request ends before its text does. False: there is none."""
        if not self.requests:
            return False
        number = self.random.choice([*self.requests])
        del self.requests[number]
        self.speculator.forget(number)
        return True

    def preempt(self) -> bool:
        """A request is put back, and begins again with the text that it has."""
        if not self.requests:
            return False
        number = self.random.choice([*self.requests])
        request = self.requests[number]
        self.speculator.forget(number)
        output = request.decided[len(request.prompt) :]
        self.speculator.begin(number, request.prompt, output, self.plan.samplings[0], request.max_len)
        return True

    def replace_sources(self, addresses: Sequence[str]) -> None:
        self.speculator.replace(FixedSources(*map(self.source, addresses)))

    def _round(self) -> None:
        if self.is_stopped:
            return
        while len(self.requests) < self.batch:
            self.begin()
        numbers = [*self.requests]
        if not numbers:
            self.process.after(self.plan.round_seconds, self._round)
            return
        running = {number: self.requests[number] for number in numbers}
        grammars = {
            number: Grammar(each.text, len(each.decided))
            for number, each in running.items()
            if each.text.forces
        }
        paths = self.speculator.propose(numbers, grammars)
        num_rows = len(numbers) + sum(len(path.tokens) for path in paths)
        seconds = self.plan.round_seconds + num_rows * self.plan.row_seconds
        self.process.after(seconds / 2, self.speculator.take_in)
        verified = dict(zip(numbers, paths, strict=True))
        self.process.after(seconds, lambda: self._settle(running, verified, num_rows, seconds))

    def _settle(
        self, running: dict[int, Request], paths: dict[int, DraftedTokens], num_rows: int, seconds: float
    ) -> None:
        # Results of requests that ended or began again meanwhile are discarded.
        mine = [number for number, each in running.items() if self.requests.get(number) is each]
        outcomes = [
            Verified(number, running[number].outcome(paths[number]), len(paths[number].tokens))
            for number in mine
        ]
        rounds = self.speculator.settle(outcomes, num_rows, seconds)
        self.num_rounds += len(rounds)
        for each, judged in zip(outcomes, rounds, strict=True):
            request = running[each.request_id]  # type: ignore[index]
            request.take(each.tokens)
            request.num_rounds += 1
            self.num_tokens += len(each.tokens)
            if judged.cause == "hit":
                request.hit_at = self.hit_at = self.process.world.now
                self.num_hits += 1
            self.process.world.note(bytes(each.tokens), request.num_rounds)
        self._check_texts(mine)
        for number in mine:
            if self.requests[number].is_over:
                del self.requests[number]
                self.speculator.forget(number)
                self.num_ended += 1
        self._round()

    def _check_texts(self, numbers: Sequence[int]) -> None:
        """The client has the target's texts: those are what its drafts are told."""
        for number in numbers:
            if number in self.client:
                known, _room = self.client.text_of(number)
                decided = self.requests[number].decided
                if len(known) != len(decided) or known[-8:].tolist() != decided[-8:]:
                    raise ViolationError("the client's text is not the target's")
