"""The rules of docs/protocol.md, and what was seen of each.

A rule that was seen to be kept and never to be broken passes. Knows no messages.
"""

from collections import Counter
from collections.abc import Iterator

RULES = {
    1: "frames are arrays of messages, within the limits",
    2: "messages have their fields, within the limits; unknown fields are ignored",
    3: "the first message of either side is HELLO",
    4: "both settle on a version, or the draft says what to update",
    5: "a target with another tokenizer is refused",
    6: "a refused target is silent, and does not come back at once",
    7: "a second HELLO means that all sequences are forgotten",
    8: "token ids are in both vocabularies",
    9: "each opening has a higher epoch, and older epochs are ignored",
    10: "an opening has values in their ranges; others are declined alone",
    11: "texts fit into the draft's context; longer ones are declined",
    12: "unknown noise is declined",
    13: "a draft without room declines with may_return",
    14: "nothing follows CLOSE",
    15: "ASK is answered by OFFER or CLOSE",
    16: "a draft that drains takes no new sequences",
    17: "outcomes are numbered 1, 2, 3 …, and have tokens",
    18: "outcomes count the frames that were taken in",
    19: "known outcomes are ignored, and missing ones cause RESYNC",
    20: "RESYNC is answered with the whole text",
    21: "an outcome that breaks a rule closes its sequence alone",
    22: "frames are numbered 0, 1, 2 …",
    23: "nodes follow the outcomes that were sent",
    24: "the root moves along the outcomes",
    25: "ids ascend, siblings come together, parents are known",
    26: "log-probabilities are numbers, at most 0",
    27: "no node is deeper than wanted",
    28: "frames are not sent without end",
    29: "a missing frame causes RESYNC; what is of another epoch or number is ignored",
    30: "RESYNC is answered with the whole tree",
    31: "an outcome of an unknown sequence or newer epoch causes RESYNC",
    32: "every frame is answered, and silence is short",
    33: "totals never fall",
    34: "over TCP an unknown key is not let in",
}
OF_DRAFTS = {*range(1, 6), *range(7, 17), 19, *range(21, 29), *range(30, 35)}
OF_TARGETS = {1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 14, 17, 18, 20, 29}
"""Rules that each side may break, and that the kit can check from outside."""


class Report:
    def __init__(self) -> None:
        self._num_kept: Counter[int] = Counter()
        self._faults: dict[int, str] = {}
        """Of each broken rule, what was seen first."""

    def note(self, rule: int, fault: str = "") -> None:
        """The rule was exercised. `fault`: how it was broken; empty: it was kept."""
        if fault:
            self._faults.setdefault(rule, fault)
        else:
            self._num_kept[rule] += 1

    @property
    def broken(self) -> set[int]:
        return {*self._faults}

    @property
    def kept(self) -> set[int]:
        return {*self._num_kept} - self.broken

    def lines(self, rules: set[int]) -> Iterator[str]:
        for rule in sorted(rules | self.broken):
            seen = "fail" if rule in self._faults else "pass" if rule in self._num_kept else "not exercised"
            fault = f": {self._faults[rule]}" if rule in self._faults else ""
            yield f"R{rule:<3} {seen:13} {RULES[rule]}{fault}"
