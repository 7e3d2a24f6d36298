"""What a policy is told of a step."""

from collections.abc import Sequence
from typing import Any

import pytest

from ssd.decoding.ahead import DraftAhead
from ssd.decoding.decoder import Decoder
from ssd.decoding.rows import DecodeRow
from ssd.draft.client.speculator import Proposed, Round, Verified
from ssd.sampling import SamplingParams
from tests.decoding.test_verification import TableModel, sampling_row


class NotingPolicy:
    proposed = Proposed()

    def __init__(self) -> None:
        self.seconds: list[float | None] = []

    def take_in(self) -> None:
        pass

    def settle(self, outcomes: Sequence[Verified], num_rows: int, seconds: float | None) -> list[Round]:
        self.seconds.append(seconds)
        return [Round()] * len(outcomes)


@pytest.mark.parametrize("has_prompt", [False, True])
def test_only_steps_that_read_no_prompt_are_timed(has_prompt: bool) -> None:
    """Verifications would seem dear after a long prompt, and speculation not worth it."""
    policy: Any = NotingPolicy()
    decoder = Decoder(TableModel([]), DraftAhead(policy))
    generated = DecodeRow([2], 0, [0], True, sampling_row([2], 1, SamplingParams(), 1), seq_id=1)
    prompt = DecodeRow([3, 3], 0, [1], False, None, seq_id=2)
    rows = [generated, prompt] if has_prompt else [generated]
    decoder.launch(rows)
    decoder.proposer.settle(rows, decoder.collect(), decoder.times)
    assert [each is None for each in policy.seconds] == [has_prompt]
