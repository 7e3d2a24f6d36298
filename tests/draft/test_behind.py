"""A draft that is behind counts as late, not as one that guesses wrongly, and gets no further sequences."""

from ssd.draft.client.mirrors import Knowledge
from tests.draft.crowd import Crowd, Target

SEQUENCES, WIDTH = 64, 12
TICKS_PER_ROUND = 5


def shares(target: Target) -> dict[str, float]:
    total = sum(target.known.values())
    return {each.value: target.known[each] / total for each in Knowledge}


def test_of_64_sequences_on_12_rows_a_step_misses_are_late() -> None:
    crowd = Crowd(width=WIDTH, sequences=SEQUENCES)
    target = crowd.add("a", SEQUENCES)
    crowd.run(100)
    target.known.clear()
    crowd.run(100)
    found = shares(target)
    assert found["unknown"] <= 0.05, found
    assert found["late"] + found["hit"] >= 0.95, found
    assert found["late"] > 0.5, "then it would not be behind, and the test would say nothing"


def test_a_draft_that_guesses_wrongly_in_time_is_not_late() -> None:
    crowd = Crowd(sequences=4)
    target = crowd.add("a", 4)
    crowd.run(40)
    target.known.clear()
    for _ in range(10):
        # Two tokens that no draft by the rule expects.
        known = target.client.outcomes([(key, [target.texts[key]] * 2) for key in target.texts])
        target.known.update(known)
        for _ in range(TICKS_PER_ROUND):
            crowd.service.turn(0.0)
            target.client.pool.read()
    assert shares(target)["unknown"] > 0.9, shares(target)
    [replica] = target.client.pool.replicas
    assert replica.is_prompt
