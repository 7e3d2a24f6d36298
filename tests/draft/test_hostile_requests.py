"""Whatever a request holds costs that request its drafts at most: nobody is opened again, nobody reconnects.

Every field that an end user can set is walked, from the classes themselves, through a real socket to a real
draft service. vLLM's own classes are walked in tests/vllm/test_hostile_requests.py.
"""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.ruled import VOCAB
from ssd.config.server import ServerConfig
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.rows import DraftContext
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol import codec
from ssd.draft.protocol import messages as wire
from ssd.draft.protocol.codec import FrameError, UnsendableError, decode, encode, sendable
from ssd.draft.protocol.messages import (
    MAX_FRAME_BYTES,
    MAX_TOKENS,
    Close,
    Open,
    Outcome,
    OutcomeHeads,
    Sampling,
    pack_ints,
)
from ssd.engine.prompts import RequestFactory
from ssd.errors import InvalidRequestError
from ssd.sampling import History, SamplingParams, SamplingRow
from ssd.server.prompts import completion_params
from ssd.server.schemas import CompletionRequest
from tests.draft.crowd import Crowd
from tests.draft.hostile_values import LISTS, NUMBERS, VALUES
from tests.draft.served import Honest, Served, speculator_at, undisturbed

_HOSTILE = 1_000_000
"""Names of hostile sequences are larger."""
_LIVE = 4
"""Hostile sequences that are open at once: some make every step of the draft slow."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(f"ipc://{tmp_path_factory.mktemp('draft')}/socket", sequences=256)
    yield served
    served.close()


@pytest.fixture
def speculator(draft: Served) -> Iterator[Speculator]:
    found = speculator_at(draft.address)
    yield found
    found.close()


@pytest.fixture
def honest(speculator: Speculator) -> Honest:
    found = Honest(speculator, ("one", "two"))
    found.rounds_until_hits()
    return found


def opening(**changes: Any) -> Open:
    usual: dict[str, Any] = {
        "seq": _HOSTILE,
        "epoch": 1,
        "tokens": pack_ints([2, 3, 4]),
        "num_prompt": 3,
        "max_len": 100,
        "lookahead": 4,
        "sampling": Sampling(seed=1),
    }
    return Open(**{**usual, **changes})


def is_readable(message: wire.AnyMessage) -> bool:
    try:
        decode(encode([message]), vocab_size=VOCAB)
    except (FrameError, OverflowError, TypeError, ValueError):
        return False
    return True


def hostile_openings() -> Iterator[Open]:
    """Of each field of OPEN and of its parameters: values of its type that no draft can work with."""
    values = (*VALUES, bytes(3), bytes(4 * MAX_TOKENS + 4), pack_ints([-1]), pack_ints([VOCAB]))
    for name in Open.__struct_fields__:
        yield from (opening(**{name: value}) for value in values if name not in ("seq", "epoch"))
    for name in Sampling.__struct_fields__:
        yield from (
            opening(sampling=msgspec.structs.replace(Sampling(seed=1), **{name: value})) for value in values
        )


def test_an_opening_that_breaks_a_rule_costs_its_sequence_alone(
    speculator: Speculator, honest: Honest
) -> None:
    """Sent on the connection of honest sequences, by a host that checks nothing."""
    (replica,) = speculator.client.pool.replicas
    connection, num_sent = replica.connection, 0
    assert connection is not None
    with undisturbed(speculator, honest):
        for number, message in enumerate(filter(is_readable, hostile_openings())):
            connection.post(msgspec.structs.replace(message, seq=_HOSTILE + number))
            num_sent += 1
            if num_sent % 100 == 0:
                honest.rounds_until_hits()
    assert num_sent > 200


def test_an_entry_of_outcome_that_breaks_a_rule_costs_its_sequence_alone(
    speculator: Speculator, honest: Honest
) -> None:
    """In one message with entries of honest sequences."""
    rows: list[tuple[tuple[int, ...], list[int]]] = [
        ((_HOSTILE, 1, n, frames, len(tokens)), tokens)
        for n in (-1, 0, 1, 2**31, 2**62)
        for frames in (-1, 0, 2**31)
        for tokens in ([], [1], [-1], [VOCAB], [2**31 - 1], [1] * (wire.MAX_LIST + 1))
    ]
    (replica,) = speculator.client.pool.replicas
    connection = replica.connection
    assert connection is not None
    with undisturbed(speculator, honest):
        for number, (heads, tokens) in enumerate(rows):
            connection.post(opening(epoch=number + 1))
            columns = OutcomeHeads(*([each] for each in (_HOSTILE, number + 1, *heads[2:])))  # type: ignore[arg-type]
            connection.post(Outcome.of(columns, tokens))
            connection.flush()
        honest.rounds_until_hits()


def test_an_outcome_that_breaks_a_rule_closes_its_sequence() -> None:
    crowd = Crowd()
    (replica,) = crowd.client("hostile").pool.replicas
    assert replica.connection is not None
    for seq in (7, 8):
        replica.connection.post(opening(seq=seq))
    columns = OutcomeHeads(*np.array([(7, 1, 1, 0, 1), (8, 1, 1, 0, 1)]).T)
    replica.connection.post(Outcome.of(columns, [5, VOCAB]))
    replica.connection.flush()
    box = crowd.hub.outboxes[b"hostile"]
    box.clear()
    crowd.service.turn(0.0)
    said = [message for frame in box for message in decode(frame, vocab_size=VOCAB)]
    closed = [(each.seq, each.reason) for each in said if isinstance(each, Close)]
    assert closed == [(8, "an outcome's token is not in the vocabulary")]
    assert crowd.scheduler.num_sessions == 1


def test_end_ids_that_no_vocabulary_has_are_left_out() -> None:
    """Nothing can end with them, so drafts are as good without."""
    given = Sampling(seed=1, end_ids=[-1, 5, VOCAB, 2**31, 2**70], bad_word_ids=[[5], [6, VOCAB], [-1]])
    assert sendable(given, VOCAB) == Sampling(seed=1, end_ids=[5], bad_word_ids=[[5]])


def test_an_opening_of_an_older_engine_loses_its_foreign_end_ids_only() -> None:
    crowd = Crowd()
    (replica,) = crowd.client("older").pool.replicas
    assert replica.connection is not None
    replica.connection.post(
        opening(seq=7, sampling=Sampling(seed=1, min_tokens=9, end_ids=[5, VOCAB, wire.MAX_ID]))
    )
    replica.connection.flush()
    for _ in range(5):
        crowd.service.turn(0.0)
    [session] = crowd.service._peers[b"older"].sessions.values()
    assert session.opening.sampling.end_ids == [5]


class ByteTokenizer:
    """A token for each byte: the most that text can have."""

    def __call__(self, text: str, **_options: object) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[2 + byte % (VOCAB - 2) for byte in text.encode(errors="replace")])


def params_with(name: str, value: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": None, name: value})


def hostile_params() -> Iterator[tuple[str, SamplingParams]]:
    """Of each field of a body and of SamplingParams, each value that the server and the engine take."""
    makers: tuple[tuple[Any, Callable[[str, Any], SamplingParams]], ...] = (
        (SamplingParams.__dataclass_fields__, params_with),
        (CompletionRequest.model_fields, _params_of_body),
    )
    for fields, make in makers:
        for name in fields:
            for value in VALUES:
                try:
                    yield name, make(name, value)
                except (InvalidRequestError, TypeError, ValueError):
                    continue


def _params_of_body(name: str, value: Any) -> SamplingParams:
    return completion_params(CompletionRequest(**{"prompt": "x", name: value}), ServerConfig())


def test_parameters_of_our_own_requests_cost_their_sequence_alone(
    speculator: Speculator, honest: Honest
) -> None:
    """Every field of a completion's body and of SamplingParams, by the way that the engine goes."""
    factory = RequestFactory(ByteTokenizer(), (0,), VOCAB, random.Random(0))
    ahead, seen = DraftAhead(speculator), set[str]()
    with undisturbed(speculator, honest):
        for number, (name, params) in enumerate(hostile_params(), _HOSTILE):
            try:
                request = factory.request([2, 3, 4], params)
            except InvalidRequestError:
                continue
            row = SamplingRow(
                params,
                request.seed,
                3,
                request.prompt_token_ids,
                History([2, 3, 4], 3),
                (*request.end_ids, *params.stop_token_ids),
                request.bad_word_ids,
            )
            ahead.begin(DraftContext(number, row, 100))
            ahead.forget(number - _LIVE)
            if name not in seen:
                seen.add(name)
                honest.rounds_until_hits()
    assert seen >= set(SamplingParams.__dataclass_fields__)


def test_what_a_draft_can_be_told_is_what_it_takes() -> None:
    """Of each field of the parameters, each value: told as it is, mended or declined, never refused."""
    outcomes = set[str]()
    for name in Sampling.__struct_fields__:
        for value in (*NUMBERS, *VALUES, *LISTS):
            given = msgspec.structs.replace(Sampling(seed=1), **{name: value})
            try:
                told = sendable(given, VOCAB)
            except UnsendableError:
                outcomes.add("declined")
                continue
            outcomes.add("told" if told == given else "mended")
            message = opening(sampling=told)
            assert codec.fault_of_opening(message, VOCAB) == "", (name, value)
            assert decode(encode([message]), vocab_size=VOCAB) == [message]
    assert outcomes == {"told", "mended", "declined"}


def test_the_bounds_are_those_of_the_sampler() -> None:
    for name, (least, most) in codec.RANGES.items():
        if name == "seed":
            continue
        for value in (least, most):
            params_with(name, value)
        with pytest.raises(InvalidRequestError):
            params_with(name, most + 1)
    SamplingParams(logit_bias={5: codec.MAX_BIAS, 6: -codec.MAX_BIAS})
    with pytest.raises(InvalidRequestError):
        SamplingParams(logit_bias={5: codec.MAX_BIAS + 1})


def test_the_largest_opening_fits_into_a_frame() -> None:
    words = [[2**31 - 2] * 8] * wire.MAX_LIST
    largest = Sampling(
        seed=2**64 - 1,
        logit_bias=[(2**31 - 2, -0.1)] * wire.MAX_LIST,
        end_ids=[2**31 - 2] * wire.MAX_LIST,
        bad_word_ids=words,
        noise="x" * wire.MAX_TEXT,
    )
    assert codec.fault_of_sampling(largest, 2**31 - 1) == ""
    message = opening(tokens=bytes(4 * MAX_TOKENS), sampling=largest)
    assert len(encode([message])) < MAX_FRAME_BYTES
