"""What a worker tells the draft of vLLM's requests, and asks of it, step by step."""

from array import array
from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ssd.draft.client.controller import Controller
from ssd.draft.client.proposals import DraftedTokens
from ssd.draft.client.replica import PoolStats
from ssd.draft.client.speculator import Proposed, Round, Verified
from ssd.draft.protocol.messages import MAX_LIST, MAX_TOKENS, Sampling
from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.requests import max_len_of, wire_sampling
from ssd.integrations.vllm.sessions import Sessions
from tests.vllm.records import new, params, scheduled


class FakePolicy:
    """Takes notes, and knows the paths it is told to know."""

    def __init__(self) -> None:
        self.paths: dict[str, list[int]] = {}
        self.texts: dict[Hashable, list[int]] = {}
        self.begun: list[tuple[str, Sampling, int]] = []
        self.draft_names: list[str] = []
        self.settled: list[tuple[list[Verified], int, float | None]] = []
        self.asked: list[list[str]] = []
        self.stats = PoolStats(num_connects=1)
        self.client = SimpleNamespace(stats=self.stats, is_ready=True)
        self.is_resting = False
        self.controller = Controller()
        self.proposed = Proposed(waited=0.5)
        self.how = Round("hit", "draft")

    def begin(
        self,
        request_id: str,
        prompt: Sequence[int],
        output: Sequence[int],
        sampling: Sampling,
        max_len: int,
        *,
        draft_name: str,
    ) -> None:
        assert request_id not in self.texts, "begun twice without an end"
        self.draft_names.append(draft_name)
        self.texts[request_id] = [*prompt, *output]
        self.begun.append((request_id, sampling, max_len))

    def forget(self, request_id: str) -> None:
        del self.texts[request_id]

    def propose(self, request_ids: list[str]) -> list[DraftedTokens]:
        self.asked.append(request_ids)
        return [DraftedTokens(array("i", self.paths.get(each, [])), []) for each in request_ids]

    def settle(self, outcomes: list[Verified], num_rows: int, seconds: float | None) -> list[Round]:
        self.settled.append((outcomes, num_rows, seconds))
        for each in outcomes:
            self.texts[each.request_id].extend(each.tokens)
        return [self.how] * len(outcomes)


class Ticking:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def speculator() -> FakePolicy:
    return FakePolicy()


def sessions_of(speculator: Any, **changes: Any) -> Sessions:
    usual: dict[str, Any] = {"max_model_len": 100, "meter": Meter(exported=False), "clock": Ticking()}
    return Sessions(speculator, lambda request_id: len(request_id), **{**usual, **changes})


@pytest.mark.parametrize(
    ("extra_args", "name"),
    [(None, ""), ({}, ""), ({"ssd_draft": "code"}, "code"), ({"ssd_draft": 7, "other": "code"}, "")],
)
def test_a_request_may_name_the_drafts_that_guess(
    speculator: FakePolicy, extra_args: dict[str, Any] | None, name: str
) -> None:
    sessions_of(speculator).begin(scheduled(new("a", sampling_params=params(extra_args=extra_args))))
    assert speculator.draft_names == [name]


def test_a_request_is_opened_told_asked_and_closed(speculator: FakePolicy) -> None:
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(new("a", [5, 6, 7])))
    sessions.settle(["a"], [[8]])
    speculator.paths = {"a": [9, 10]}
    assert sessions.propose() == (["a"], [[9, 10]])
    sessions.begin(scheduled(running={"a": 3}, drafted={"a": [9, 10]}))
    sessions.settle(["a"], [[9, 11]])
    assert speculator.texts == {"a": [5, 6, 7, 8, 9, 11]}
    assert speculator.settled[-1][0] == [Verified("a", [9, 11], 2)]
    sessions.begin(scheduled(finished=["a"]))
    assert speculator.texts == {}
    report = sessions.report()
    assert report["spec_sessions"] == 0
    assert report["spec_sessions_opened"] == 1
    assert report["rounds"] == 2
    assert report["spec_hits"] == 2
    assert report["spec_decode_num_draft_tokens.draft"] == 2
    assert report["spec_decode_num_accepted_tokens.draft"] == 1
    assert report["wait_seconds"] == 0.5


def test_a_prompt_that_is_still_read_has_no_outcome_and_gets_no_proposal(speculator: FakePolicy) -> None:
    sessions = sessions_of(speculator)
    speculator.paths = {"a": [1], "b": [1]}
    sessions.begin(scheduled(new("a"), new("b")))
    sessions.settle(["a", "b"], [[], [4]])
    assert sessions.propose() == (["b"], [[1]])
    assert [each.request_id for each in speculator.settled[0][0]] == ["b"]


def test_only_steps_that_generate_are_timed(speculator: FakePolicy) -> None:
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(new("a")))
    sessions.settle(["a"], [[4]])
    assert speculator.settled[-1][1:] == (3, None)
    sessions.begin(scheduled(running={"a": 3}, drafted={"a": [1, 2]}))
    sessions.settle(["a"], [[4]])
    assert speculator.settled[-1][1:] == (3, 1.0)
    # A request that was preempted reads its text again.
    sessions.begin(scheduled(running={"a": 7}))
    sessions.settle(["a"], [[4]])
    assert speculator.settled[-1][1:] == (7, None)
    sessions.begin(scheduled())
    sessions.settle([], [])
    assert speculator.settled[-1][1:] == (0, None)


@pytest.mark.parametrize(("finished", "reopened"), [(["a"], 0), ([], 1)])
def test_an_id_that_comes_again_restarts_its_session(
    speculator: FakePolicy, finished: list[str], reopened: int
) -> None:
    """After its end, or as a new request while it lives."""
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(new("a", [1])))
    sessions.begin(scheduled(new("a", [2, 3]), finished=finished))
    assert speculator.texts == {"a": [2, 3]}
    assert sessions.report()["spec_sessions_reopened"] == reopened


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (new("x", mm_features=["image"]), "images"),
        (new("x", None, prompt_embeds=object()), "prompt_embeds"),
        (new("x", prompt_embeds=object()), "prompt_embeds"),
        (new("x", sampling_params=None, pooling_params=object()), "pooling"),
        (new("x", []), "length"),
        (new("x", [1] * (MAX_TOKENS + 1)), "length"),
    ],
)
def test_what_is_not_drafted_is_counted_and_harmless(
    speculator: FakePolicy, request_: SimpleNamespace, reason: str
) -> None:
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(request_))
    sessions.settle(["x"], [[4]])
    assert sessions.propose() == ([], [])
    sessions.begin(scheduled(finished=["x"]))
    assert speculator.begun == []
    assert sessions.report()[f"spec_declined.{reason}"] == 1


def test_padding_makes_proposals_equally_long_and_is_counted_apart(speculator: FakePolicy) -> None:
    sessions = sessions_of(speculator, padded_to=3)
    sessions.begin(scheduled(new("a"), new("b")))
    sessions.settle(["a", "b"], [[4], [4]])
    assert sessions.propose() == (["a", "b"], [[], []])  # Nothing to verify: a plain step.
    sessions.begin(scheduled(running={"a": 1, "b": 1}))
    sessions.settle(["a", "b"], [[4], [4]])
    speculator.paths = {"a": [7, 8]}
    assert sessions.propose() == (["a", "b"], [[7, 8, 0], [0, 0, 0]])
    sessions.begin(scheduled(running={"a": 4, "b": 4}, drafted={"a": [7, 8, 0], "b": [0, 0, 0]}))
    # Padding may be right by chance, and is not the draft's merit.
    sessions.settle(["a", "b"], [[7, 8, 0, 5], [0, 1]])
    assert speculator.settled[-1][0] == [Verified("a", [7, 8, 0, 5], 2), Verified("b", [0, 1], 0)]
    report = sessions.report()
    assert report["spec_padding_tokens"] == 4
    assert report["spec_decode_num_draft_tokens.draft"] == 2
    assert report["spec_decode_num_accepted_tokens.draft"] == 2


def test_no_more_is_proposed_than_the_scheduler_asked_for(speculator: FakePolicy) -> None:
    """By batch size, if vLLM is told so."""
    sessions = sessions_of(speculator, padded_to=4)
    speculator.paths = {"a": [7, 8, 9]}
    for most, proposed in ((2, [7, 8]), (0, []), (8, [7, 8, 9, 0])):
        sessions.begin(scheduled(new("a"), most_drafted=most))
        sessions.settle(["a"], [[4]])
        assert sessions.propose() == (["a"], [proposed])


def test_what_the_scheduler_cut_was_not_verified(speculator: FakePolicy) -> None:
    """A grammar may forbid drafted tokens, and a preempted request loses its own."""
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(new("a")))
    sessions.settle(["a"], [[4]])
    speculator.paths = {"a": [1, 2, 3]}
    sessions.propose()
    sessions.begin(scheduled(running={"a": 2}, drafted={"a": [1]}))
    sessions.settle(["a"], [[1, 9]])
    assert speculator.settled[-1][0][0].num_drafted == 1
    sessions.begin(scheduled(running={"a": 6}))
    sessions.settle(["a"], [[4]])
    assert speculator.settled[-1][0][0].num_drafted == 0


def test_only_the_latest_step_is_proposed_for(speculator: FakePolicy) -> None:
    """A step that nobody asked for leaves nothing that the next one would be mistaken for."""
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(new("a")))
    sessions.settle(["a"], [[4]])
    sessions.begin(scheduled(new("b")))
    sessions.settle(["b"], [[4]])
    assert [sessions.propose()[0] for _ in range(2)] == [["b"], []]
    sessions.settle(["b"], [[4]])
    sessions.begin(scheduled(finished=["b"]))
    assert sessions.propose() == ([], [])
    assert speculator.asked == [["b"]]


def test_detached_nothing_is_told_or_proposed_until_attached_again(speculator: FakePolicy) -> None:
    sessions = sessions_of(speculator)
    speculator.paths = {"a": [1], "b": [1], "c": [1]}
    sessions.begin(scheduled(new("a")))
    sessions.detach()
    assert speculator.texts == {}
    sessions.begin(scheduled(new("b")))
    sessions.settle(["a", "b"], [[4], [4]])
    assert sessions.propose() == ([], [])
    sessions.attach()
    sessions.begin(scheduled(new("c")))
    sessions.settle(["a", "b", "c"], [[4], [4], [4]])
    assert sessions.propose() == (["c"], [[1]])


def test_parameters_travel_as_far_as_they_decide_tokens() -> None:
    given = params(top_k=-1, top_p=0.9, min_tokens=3, all_stop_token_ids={9, 2}, bad_words_token_ids=[[4, 5]])
    sampling = wire_sampling(given, -1, coupled=True)
    assert sampling == Sampling(
        seed=2**64 - 1,
        temperature=0.7,
        top_k=0,
        top_p=0.9,
        min_tokens=3,
        end_ids=[2, 9],
        bad_word_ids=[[4, 5]],
    )


def test_without_coupling_the_likeliest_tokens_are_guessed() -> None:
    assert wire_sampling(params(), 1, coupled=False).temperature == 0.0


def test_lists_stay_within_what_the_protocol_takes() -> None:
    many = params(all_stop_token_ids=set(range(2 * MAX_LIST)), bad_words_token_ids=[[1]] * (2 * MAX_LIST))
    sampling = wire_sampling(many, 1, coupled=True)
    assert len(sampling.end_ids) == len(sampling.bad_word_ids) == MAX_LIST


@pytest.mark.parametrize(("most", "expected"), [(8, 11), (None, 100), (500, 100)])
def test_the_longest_text_a_request_may_become(most: int | None, expected: int) -> None:
    assert max_len_of(new("a", [1, 2, 3], sampling_params=params(max_tokens=most)), 100) == expected


def test_on_v2_a_preempted_request_comes_back_as_a_new_one(speculator: FakePolicy) -> None:
    sessions = sessions_of(speculator, reopens_preempted=True)
    sessions.begin(scheduled(new("a", [1, 2, 3])))
    sessions.settle(["a"], [[4]])
    sessions.begin(scheduled(preempted=["a"]))
    assert not speculator.texts
    sessions.begin(scheduled(new("a", [1, 2, 3], prefill_token_ids=[1, 2, 3, 4])))
    assert speculator.texts == {"a": [1, 2, 3, 4]}


def test_a_step_that_others_overtook_is_settled_by_its_own_record(speculator: FakePolicy) -> None:
    """Under asynchronous scheduling the device chose the tokens, and the time is not that of one step."""
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(new("a")))
    sessions.settle(["a"], [[4]])
    first = sessions.begin(scheduled(running={"a": 5}, drafted={"a": [-1] * 4}))
    sessions.begin(scheduled(running={"a": 3}, drafted={"a": [-1] * 2}))
    sessions.settle(["a"], [[5, 6]], first, {"a": 3})
    [outcomes, num_rows, seconds] = speculator.settled[-1]
    assert [each.num_drafted for each in outcomes] == [3]
    assert (num_rows, seconds) == (5, None)
    assert sessions.report()["spec_padding_tokens"] == 1


def test_tokens_of_a_step_before_a_preemption_are_not_added_to_the_reopened_request(
    speculator: FakePolicy,
) -> None:
    """The request comes back with the tokens that the scheduler kept: those of the step may be among them."""
    sessions = sessions_of(speculator, reopens_preempted=True)
    sessions.begin(scheduled(new("a", [1, 2, 3])))
    stale = sessions.begin(scheduled(running={"a": 1}))
    sessions.begin(scheduled(preempted=["a"]))
    reopened = sessions.begin(scheduled(new("a", [1, 2, 3], prefill_token_ids=[1, 2, 3, 4])))
    sessions.settle(["a"], [[4]], stale, {})
    assert speculator.texts == {"a": [1, 2, 3, 4]}
    sessions.settle(["a"], [[5]], reopened, {})
    assert speculator.texts == {"a": [1, 2, 3, 4, 5]}


def test_tokens_of_a_step_of_closed_sessions_are_not_added_to_new_ones(speculator: FakePolicy) -> None:
    """Drafting was paused in between, and the request was preempted and opened again."""
    stale = sessions_of(FakePolicy()).begin(scheduled(new("a", [1, 2])))
    sessions = sessions_of(speculator)
    sessions.begin(scheduled(new("a", [1, 2, 3])))
    sessions.settle(["a"], [[3]], stale, {})
    assert speculator.texts == {"a": [1, 2, 3]}


def test_drafted_tokens_are_counted_by_the_step_that_chose_them(speculator: FakePolicy) -> None:
    """vLLM keeps a request's drafted tokens over a step that it is not in."""
    sessions = sessions_of(speculator, reopens_preempted=True)
    sessions.begin(scheduled(new("a"), new("b")))
    both = sessions.begin(scheduled(running={"a": 5, "b": 5}, drafted={"a": [-1] * 4, "b": [-1] * 4}))
    alone = sessions.begin(scheduled(running={"a": 5}, drafted={"a": [-1] * 4}))
    again = sessions.begin(scheduled(running={"a": 5, "b": 5}, drafted={"a": [-1] * 4, "b": [-1] * 4}))
    found = list[dict[Hashable, int]]()
    for step, names, counts in ((both, "ab", {}), (alone, "a", {"a": 3, "b": 2}), (again, "ab", {"a": 1})):
        sessions.settle(list(names), [[5]] * len(names), step, counts)
        found.append({each.request_id: each.num_drafted for each in speculator.settled[-1][0]})
    assert found == [{"a": 0, "b": 0}, {"a": 3}, {"a": 1, "b": 2}]


def test_drafted_tokens_of_a_preempted_request_do_not_count_for_the_reopened_one(
    speculator: FakePolicy,
) -> None:
    sessions = sessions_of(speculator, reopens_preempted=True)
    sessions.begin(scheduled(new("a"), new("b")))
    step = sessions.begin(scheduled(running={"b": 1}, preempted=["a"]))
    # One token is left, so vLLM pads it: what it verifies are zeros.
    reopened = sessions.begin(scheduled(new("a"), running={"b": 1}, drafted={"a": [-1] * 4}))
    sessions.settle(["b"], [[5]], step, {"a": 3, "b": 0})
    sessions.settle(["a", "b"], [[5], [5]], reopened, {"a": 3, "b": 0})
    assert [each.num_drafted for each in speculator.settled[-1][0]] == [0, 0]
