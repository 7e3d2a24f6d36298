"""The first child is what the sampler would decide from the same logits; the rest are ranked and weighed."""

import random

import pytest
import torch

from ssd.draft.tree.children import likely_children
from ssd.sampling import History, SamplingParams, SamplingRow, process_logits, sample
from tests.sampling.noise import gumbel_noise

VOCAB = 200
"""Few enough for all of it to be looked at, so that the two must agree always and not mostly."""


def random_row(rng: random.Random, vocab: int = VOCAB) -> SamplingRow:
    def some(*values: float) -> float:
        return rng.choice(values)

    prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, 9))]
    output = [rng.randrange(vocab) for _ in range(rng.randint(0, 12))]
    params = SamplingParams(
        temperature=some(0.0, 0.3, 0.8, 1.0, 1.0, 2.5),
        top_k=rng.choice([0, 0, 1, 5, 40]),
        top_p=some(1.0, 1.0, 0.9, 0.3),
        min_p=some(0.0, 0.0, 0.05, 0.5),
        repetition_penalty=some(1.0, 1.0, 1.3, 0.7),
        presence_penalty=some(0.0, 0.0, 1.5, -0.5),
        frequency_penalty=some(0.0, 0.0, 0.7),
        logit_bias=rng.choice([None, None, {rng.randrange(vocab): 8.0, rng.randrange(vocab): -100.0}]),
        min_tokens=rng.choice([0, 0, 5]),
    )
    ends, words = (1, 2), ((rng.randrange(vocab),), (prompt[-1], rng.randrange(vocab)))
    return SamplingRow(
        params=params,
        seed=rng.randrange(2**64),
        position=len(prompt) + len(output),
        prompt=prompt,
        output=History(output),
        end_ids=rng.choice([(), ends]),
        bad_word_ids=rng.choice([(), words]),
    )


def random_logits(rows: int, vocab: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * 3


@pytest.mark.parametrize("seed", range(4))
def test_the_first_child_is_what_the_sampler_decides(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(200)]
    logits = random_logits(len(rows), VOCAB, seed)
    children = likely_children(logits, rows, 4)
    decided = sample(logits, rows)
    assert [int(each.tokens[0]) for each in children] == [each.token for each in decided]


def test_a_wide_vocabulary_seldom_hides_the_winner() -> None:
    """Noise may lift a token from below the candidates: it costs a guess, so it has to be rare."""
    rng = random.Random(5)
    rows = [random_row(rng, 5000) for _ in range(300)]
    logits = random_logits(len(rows), 5000, 5) * 1.5
    pairs = zip(likely_children(logits, rows, 4), sample(logits, rows), strict=True)
    assert sum(int(each.tokens[0]) == decided.token for each, decided in pairs) >= 294


def test_children_are_those_of_the_perturbed_scores_and_so_are_their_chances() -> None:
    rng = random.Random(6)
    rows = [random_row(rng) for _ in range(60)]
    logits = random_logits(len(rows), VOCAB, 6)
    for index, (row, found) in enumerate(zip(rows, likely_children(logits, rows, 4), strict=True)):
        scores = process_logits(logits[index], row)
        if not row.params.greedy:
            scores = scores + gumbel_noise([row.seed], [row.position], VOCAB)[0]
        best = scores.topk(4)
        kept = int(best.values.isfinite().sum())
        assert found.tokens.tolist() == best.indices[: min(4, kept)].tolist()
        assert (found.raws[:-1] >= found.raws[1:]).all()
        if not row.params.greedy:
            raws = scores.log_softmax(0)[best.indices[:kept]]
            torch.testing.assert_close(torch.from_numpy(found.raws), raws, rtol=1e-4, atol=1e-4)


def test_rows_do_not_depend_on_their_company() -> None:
    rng = random.Random(7)
    rows = [random_row(rng) for _ in range(40)]
    logits = random_logits(len(rows), VOCAB, 7)
    together = likely_children(logits, rows, 3)
    for index, row in enumerate(rows):
        (alone,) = likely_children(logits[index : index + 1], [row], 3)
        assert alone.tokens.tolist() == together[index].tokens.tolist()
        assert alone.raws.tolist() == pytest.approx(together[index].raws.tolist(), abs=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_a_smaller_head_gives_the_children_it_knows(seed: int) -> None:
    """Its columns are some tokens; parameters go on meaning the whole vocabulary's, beyond it too."""
    rng = random.Random(seed)
    head = torch.tensor(sorted(rng.sample(range(VOCAB), 60)))
    rows = [random_row(rng) for _ in range(120)]
    logits = random_logits(len(rows), VOCAB, seed)
    masked = torch.full_like(logits, -torch.inf).index_copy(1, head, logits[:, head])
    found = likely_children(logits[:, head], rows, 4, head_tokens=head)
    expected = likely_children(masked, rows, 4)
    for mine, theirs in zip(found, expected, strict=True):
        finite = theirs.raws > -1e30
        assert mine.tokens.tolist() == theirs.tokens[finite].tolist()


def test_fewer_tokens_than_children_are_asked_for() -> None:
    greedy = SamplingRow(SamplingParams(temperature=0.0), 1, 3, [1], History([]))
    logits = random_logits(1, 3, 1)
    (found,) = likely_children(logits, [greedy], 8)
    assert sorted(found.tokens.tolist()) == [0, 1, 2]
    one = SamplingRow(SamplingParams(temperature=1.0, top_k=1), 1, 3, [1], History([]))
    (found,) = likely_children(random_logits(1, VOCAB, 2), [one], 4)
    assert len(found.tokens) == 1
    assert found.raws.tolist() == [0.0]


def test_a_row_in_which_everything_is_forbidden_has_no_children() -> None:
    row = SamplingRow(SamplingParams(temperature=1.0), 1, 3, [1], History([]))
    (found,) = likely_children(torch.full((1, VOCAB), -torch.inf), [row], 4)
    assert len(found.tokens) == len(found.raws) == 0
