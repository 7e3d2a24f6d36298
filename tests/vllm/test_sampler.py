"""Our samplers in vLLM's own classes: one token for each position, drafted or not, after its processors."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

from vllm.platforms import current_platform
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.sampler import couple
from tests.vllm.records import new, params, scheduled

VOCABULARY = 1000
IDS = ["a", "b", "c"]
LENGTHS = [10, 20, 30]
SEEDS = [5, None, 7]


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> Iterator[None]:
    if not current_platform.is_cpu():
        pytest.skip("vLLM for CPUs is tested here")
    current_platform.import_kernels()
    # vLLM compiles its count of ranks with the first logprobs, which takes seconds.
    with torch.compiler.set_stance("force_eager"):
        yield


def runner(mode: str = "raw_logprobs", *, lengths: Sequence[int] = LENGTHS) -> Any:
    rows = BatchRows("salt")
    rows.follow(scheduled(*(new(i, sampling_params=params(seed=s)) for i, s in zip(IDS, SEEDS, strict=True))))
    stock = Sampler(mode)
    found = SimpleNamespace(
        sampler=stock,
        rejection_sampler=RejectionSampler(stock),
        input_batch=SimpleNamespace(req_ids=IDS, num_tokens_no_spec=np.array([*lengths, 0], np.int32)),
    )
    couple(found, rows)
    return found


def metadata(temperatures: Sequence[float], **changes: Any) -> SamplingMetadata:
    size, greedy = len(temperatures), [each == 0 for each in temperatures]
    usual = {
        "temperature": None if all(greedy) else torch.tensor(temperatures),
        "all_greedy": all(greedy),
        "all_random": not any(greedy),
        "top_p": None,
        "top_k": None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": torch.zeros(size),
        "presence_penalties": torch.zeros(size),
        "repetition_penalties": torch.ones(size),
        "output_token_ids": [[] for _ in range(size)],
        "spec_token_ids": [[] for _ in range(size)],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    return SamplingMetadata(**{**usual, **changes})


def verification(drafted: Sequence[Sequence[int]]) -> SpecDecodeMetadata:
    """As vLLM lays rows out: of each request its drafted tokens' rows, then one more."""
    counts = np.array([len(each) for each in drafted])
    ends = np.cumsum(counts + 1)
    starts = ends - counts - 1
    targets = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
    return SpecDecodeMetadata(
        draft_token_ids=torch.tensor([t for each in drafted for t in each], dtype=torch.int32),
        num_draft_tokens=counts.tolist(),
        cu_num_draft_tokens=torch.from_numpy(np.cumsum(counts)).int(),
        cu_num_sampled_tokens=torch.from_numpy(ends).int(),
        target_logits_indices=torch.from_numpy(targets).int(),
        bonus_logits_indices=torch.from_numpy(ends - 1).int(),
        logits_indices=torch.arange(int(ends[-1])).int(),
    )


def alone(logits: Tensor, given: SamplingMetadata, ahead: int, mode: str = "raw_logprobs") -> SamplerOutput:
    """One row of each request, as far ahead: what it would get if nothing had been drafted."""
    return runner(mode, lengths=[length + ahead for length in LENGTHS]).sampler(logits, given)


def some_logits(seed: int, num_rows: int) -> Tensor:
    return torch.randn(num_rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


CASES: dict[str, dict[str, Any]] = {
    "random": {},
    "truncated": {"top_k": torch.tensor([20, VOCABULARY, 5]), "top_p": torch.tensor([0.9, 0.7, 1.0])},
    "penalties": {
        "no_penalties": False,
        "prompt_token_ids": torch.arange(24).reshape(3, 8),
        "presence_penalties": torch.full((3,), 1.5),
        "repetition_penalties": torch.full((3,), 1.3),
        "output_token_ids": [[1, 2], [3], [4, 4]],
    },
    "bad words": {"bad_words_token_ids": {0: [[3]], 2: [[9, 8]]}, "output_token_ids": [[9], [9], [9]]},
    "allowed": {"allowed_token_ids_mask": torch.arange(3 * VOCABULARY).reshape(3, -1) % 7 != 0},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperatures", [(0.7, 1.2, 0.9), (0.0, 0.8, 0.0), (0.0, 0.0, 0.0)])
def test_verified_tokens_are_those_that_come_without_a_draft(
    case: str, temperatures: tuple[float, ...]
) -> None:
    """Right and wrong guesses of several lengths: each decided token is the one a plain step decides."""
    steps = [some_logits(step, 3) for step in range(4)]
    changes, texts = dict(CASES[case]), [list[int]() for _ in IDS]
    before = changes.pop("output_token_ids", [[], [], []])
    for step, logits in enumerate(steps):
        given = metadata(
            temperatures,
            **changes,
            output_token_ids=[b + t for b, t in zip(before, texts, strict=True)],
        )
        for text, token in zip(texts, alone(logits, given, step).sampled_token_ids, strict=True):
            text.append(int(token))
    guesses = [[*texts[0][:2], 999 - texts[0][2]], texts[1][:3], []]
    rows = [steps[step][place] for place, guess in enumerate(guesses) for step in range(len(guess) + 1)]
    given = metadata(temperatures, **changes, output_token_ids=before, spec_token_ids=guesses)
    output = runner().rejection_sampler(verification(guesses), None, torch.stack(rows), given)
    assert output.sampled_token_ids.tolist() == [
        [*texts[0][:3], -1],
        texts[1][:4],
        [texts[2][0], -1, -1, -1],
    ]
    assert output.sampled_token_ids.dtype == torch.int32


def test_padding_that_vllm_marks_is_never_accepted() -> None:
    output = runner().rejection_sampler(
        verification([[-1, -1], [-1], []]), None, some_logits(1, 6), metadata((0.5, 0.0, 0.5))
    )
    assert (output.sampled_token_ids[:, 1:] == -1).all()


def test_greedy_is_what_stock_vllm_gives() -> None:
    """Also beside rows that draw."""
    given, logits = metadata((0.0, 0.0, 0.0)), some_logits(3, 3)
    logits[:, [40, 17]] = 100.0  # A tie.
    mixed = runner().sampler(logits, metadata((0.0, 0.9, 0.0))).sampled_token_ids
    assert [mixed[0].item(), mixed[2].item()] == [17, 17]
    ours, stock = runner().sampler(logits, given), Sampler()(logits, given)
    assert ours.sampled_token_ids.tolist() == stock.sampled_token_ids.tolist() == [[17], [17], [17]]


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.0), (0.7, 0.0, 1.3)])
def test_logprobs_are_vllms(mode: str, temperatures: tuple[float, ...]) -> None:
    """Of plain rows and of verified ones, as stock vLLM shows them for the tokens that were decided."""
    changes = {"top_k": torch.tensor([20, VOCABULARY, 50]), "max_num_logprobs": 3}
    given, logits = metadata(temperatures, **changes), some_logits(5, 3)
    ours, stock = alone(logits.clone(), given, 0, mode), Sampler(mode)(logits.clone(), given)
    for place in range(3):
        if temperatures[place] == 0.0:
            assert ours.sampled_token_ids[place] == stock.sampled_token_ids[place]
    top, stock_top = (each.logprobs_tensors.logprobs[:, 1:] for each in (ours, stock))
    assert torch.allclose(top, stock_top, atol=1e-5)
    verified = runner(mode).rejection_sampler(verification([[], [5], []]), None, logits[[0, 1, 1, 2]], given)
    shown = verified.logprobs_tensors.logprobs.reshape(3, 2, -1)[:, 0]
    assert torch.allclose(shown, ours.logprobs_tensors.logprobs, atol=1e-5)


def test_warming_up_with_rows_of_nobody_works() -> None:
    found = runner()
    given = metadata((0.5,) * 5, top_p=torch.full((5,), 0.9))
    assert found.sampler(some_logits(1, 5), given).sampled_token_ids.shape == (5, 1)
    dummy = SpecDecodeMetadata.make_dummy([[0]] * 5, torch.device("cpu"))
    assert found.rejection_sampler(dummy, None, some_logits(2, 10), given).sampled_token_ids.shape == (5, 2)


def test_tokens_are_distributed_as_softmax() -> None:
    """Over positions, for a small vocabulary: a chi-square of 4 degrees stays below its 99.99 % point."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5]]).repeat(3, 1)
    counts, num = torch.zeros(5), 300
    for ahead in range(num):
        for token in alone(logits, metadata((0.8, 0.8, 0.8)), ahead).sampled_token_ids.flatten():
            counts[token] += 1
    expected = (logits[0] / 0.8).softmax(0) * 3 * num
    assert float(((counts - expected) ** 2 / expected).sum()) < 23.5
