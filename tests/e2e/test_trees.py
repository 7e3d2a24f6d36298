"""Whatever trees are offered, and whatever happens meanwhile: the tokens of plain decoding.

The full form is `python -m campaigns.e2e.trees --model MODEL`, whose record is docs/records/trees.jsonl.
"""

import pytest

from campaigns.e2e.trees import CIRCUMSTANCES, REPLAYED, Bench, Seen, compare
from tests.tiny import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint("medium", tmp_path_factory.mktemp("target")))


def check(found: dict[str, Seen]) -> None:
    assert {name: seen.different for name, seen in found.items()} == dict.fromkeys(found, 0)
    for seen in found.values():
        # Otherwise the circumstances were not what they are called.
        assert seen.trees > 20
        assert seen.accepted > seen.trees / 4
        assert seen.aside > seen.trees / 10
    assert found["preempted"].preemptions > 0
    assert found["alone"].cached > 0
    assert found["no prefix cache"].cached == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_deterministic_to_the_bit(model: str, dtype: str) -> None:
    bench = Bench(model, deterministic=True, dtype=dtype)
    check(dict(compare(bench, 16, 12, CIRCUMSTANCES)))


def test_loose(model: str) -> None:
    """Not to the bit: in float32 no tie of these texts is decided by rounding."""
    bench = Bench(model, deterministic=False, dtype="float32")
    check(dict(compare(bench, 16, 12, (*CIRCUMSTANCES, REPLAYED))))
