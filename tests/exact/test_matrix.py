"""Plain decoding is the definition of every token: rows of circumstances equal it, to the last bit.

Run a row again with `python -m tests.exact --seed N`, N being its seed. `-m slow` runs further matrices.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest

from tests.exact import requests, rows
from tests.exact.definition import Definition
from tests.exact.engine import TargetWithDrafts
from tests.exact.requests import Asked, pairs_of, pool, values_of
from tests.exact.rows import SEEDS, Row, goals_of, matrix
from tests.exact.run import PLAIN, Exact, Ran
from tests.models.test_linear import HAS

ExactOf = Callable[[str], Exact]
LOOKS_4_AHEAD = next(seed for seed in range(100) if replace(PLAIN, seed=seed).lookahead == 4)
SLOW = range(1, 13)
ROWS = tuple(map(Row.drawn, SEEDS))


@pytest.fixture(scope="session")
def exact_of(tmp_path_factory: pytest.TempPathFactory) -> ExactOf:
    """The target of some weights, loaded at the first call."""

    @cache
    def found(weights: str) -> Exact:
        if weights == "int8" and HAS.int8_steps is None:
            pytest.skip("int8 linears need AVX-512")
        return Exact(TargetWithDrafts(weights, tmp_path_factory.mktemp(weights)))

    return found


def name_of(row: Row) -> str:
    return "-".join(str(value) for _, value in [("seed", row.seed), *values_of(row)[:5]])


def check_circumstances(ran: Ran) -> None:
    """A row whose circumstances did not come about proves nothing."""
    row, seen = ran.row, ran.seen
    assert seen.most_rows >= min(row.batch, 4)
    assert (ran.preemptions > 0) == (row.room == "few")
    assert (ran.cached > 0) <= row.cache
    assert (ran.cached > 0) >= (row.cache and row.room == "plenty")
    assert seen.parts > 0 or row.prompts != "chunks"
    assert (seen.num_faults > 0) == (row.draft_fault != "none")
    if row.mode == "ar":
        assert seen.drafted == ran.frames == 0
    if row.mode == "ssd":
        assert seen.frames_before > 0 or row.draft_fault == "late"
    if row.draft_fault == "killed":
        assert ran.losses > 0
        assert ran.frames > seen.frames_before, "it never came back"
    if row.draft == "hostile":
        assert seen.drafted > seen.accepted > 0
        assert (seen.trees > 0) == row.tree
        assert seen.off_first_path > 0 or not row.tree or row.batch > 5
    if row.draft == "good" and row.draft_fault != "late":
        assert seen.accepted > 0
    if row.draft == "good" and row.draft_fault == "none":
        check_it_pays(ran)
    if row.room == "plenty" and row.prompts == "whole" and not row.fair_sharing:
        # Nobody waits for a place that is free; a prompt's copies wait until it is read.
        assert seen.idle <= 3 * len(row.asked)


def check_it_pays(ran: Ran) -> None:
    """A draft that is the target: nearly all it says is taken, and steps are saved."""
    row, seen = ran.row, ran.seen
    assert seen.accepted > ran.num_tokens / 8
    assert seen.trees > 0 or not row.tree or row.batch > 5
    assert seen.accepted > 0.8 * seen.drafted or row.tree
    assert ran.hits > ran.num_tokens / 10 or row.mode == "sd"
    assert ran.losses == 0


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_equals_plain_decoding(exact_of: ExactOf, row: Row) -> None:
    ran = exact_of(row.weights).run(row)
    assert ran.faults == []
    check_circumstances(ran)


@pytest.mark.parametrize(
    ("mode", "tree", "batch", "most_steps"),
    [
        ("sd", False, 2, 30),
        ("sd", True, 2, 39),
        ("ssd", False, 1, 63),
        ("ssd", True, 2, 33),
        ("ssd", False, 4, 23),
    ],
)
def test_a_draft_that_is_the_target_saves_steps(
    exact_of: ExactOf, mode: str, tree: bool, batch: int, most_steps: int
) -> None:
    """Tokens would be right without it, so only the count of steps shows a draft that fell out of step."""
    row = replace(
        PLAIN, weights="float32", mode=mode, tree=tree, draft="good", batch=batch, seed=LOOKS_4_AHEAD
    )
    texts = [Asked.drawn(seed) for seed in range(6)]
    asked = [replace(each, grammar="none", ending="length", edits="none", n=1) for each in texts]
    ran = exact_of("float32").run(row, asked)
    assert (ran.faults, ran.losses) == ([], 0)
    assert ran.seen.steps <= most_steps
    assert ran.seen.accepted > 0.5 * ran.num_tokens
    assert ran.seen.accepted > 0.98 * ran.seen.drafted or tree
    assert ran.hits > ran.num_tokens / 6 or mode == "sd"
    assert (ran.seen.trees > 10) == tree


@pytest.mark.slow
@pytest.mark.parametrize("number", SLOW)
def test_further_matrices(exact_of: ExactOf, number: int) -> None:
    for row in matrix(number):
        ran = exact_of(row.weights).run(row)
        assert (row, ran.faults) == (row, [])
        assert (ran.preemptions > 0) == (row.room == "few")


def test_plain_decoding_equals_the_definition(exact_of: ExactOf) -> None:
    exact = exact_of("float32")
    definition, effects, ends = Definition(exact.bench), set[str](), set[tuple[str, str]]()
    for asked in pool(0):
        request, found = exact.request(asked), exact.plain(asked)
        wrong = definition.wrong_prompt_scores(request, found.prompt_logprobs)
        assert len(found.outputs) == asked.n
        for each in found.outputs:
            wrong += definition.faults(request, each)
            ends.add((each.finish_reason, type(each.stop_reason).__name__))
            effects |= definition.effects(request, each)
        assert (asked, wrong) == (asked, [])
    assert effects == {"temperature", "truncation", "penalties", "bias", "bad_words", "min_tokens"}
    assert ends >= {("length", "NoneType"), ("stop", "NoneType"), ("stop", "int"), ("stop", "str")}


def _all_pairs(dimensions: dict[str, tuple[Any, ...]]) -> set[frozenset[Any]]:
    return {
        frozenset(((one, mine), (two, other)))
        for one, two in combinations(dimensions, 2)
        for mine, other in product(dimensions[one], dimensions[two])
    }


def test_the_pool_has_all_pairs_of_features() -> None:
    assert not _all_pairs(requests.DIMENSIONS) - set().union(*map(pairs_of, pool(0)))


def test_the_matrix_has_all_possible_pairs() -> None:
    reached = set().union(*map(goals_of, ROWS))
    possible = set().union(*(pairs_of(Row.drawn(seed)) for seed in range(5000)))
    assert not possible - reached
    for (name, values), (other, features) in product(rows.DIMENSIONS.items(), requests.DIMENSIONS.items()):
        missing = {
            (mine, feature)
            for mine, feature in product(values, features)
            if frozenset(((name, mine), (other, feature))) not in reached
        }
        assert not missing, (name, other)


def test_a_row_is_its_seed() -> None:
    for row in ROWS:
        assert Row.drawn(row.seed) == row
        assert Asked.drawn(row.asked[0].seed) == row.asked[0]
