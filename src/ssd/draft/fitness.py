"""Which kind of draft suits a text: by how many of its tokens are accepted in a round.

Drafts that go by one name are of one kind: a model for code, one for chat. What a kind is worth to a text is
what it has shown there. Where it has shown nothing yet, it is what the kind has been worth to texts that
begin alike, or to any, at its better times: their mean, and as much as they differ. The kind that may be
worth most is tried first, and left once another may clearly be worth more. So a kind that never was of use is
not tried again, but by one text in some, for it may have been replaced. Knows counts; no drafts, no clock.
"""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ssd.draft.choice import beginning_of

TRIAL = 6
"""Rounds in which a kind shows what it is worth to a text."""
_CLEARLY, _AT_LEAST = 1.4, 0.1
"""Times as much, and tokens a round more, that another must promise: going there costs a prefill."""
_DOUBT = 2.0
"""Tokens a round by which texts may differ, as long as few have been seen."""
_MEMORY = 0.9
"""What the texts before still count after the next; at first all count alike."""
_SCOUTS = 16
"""One text in so many begins with the kind of which least is known, whatever that promises."""
_KEPT_BEGINNINGS = 1024


class Standing:
    """What a kind has been worth to texts: tokens a round, and how far they differ."""

    def __init__(self) -> None:
        self.num_texts, self._mean, self._variance = 0, 0.0, _DOUBT**2

    @property
    def promise(self) -> float:
        return self._mean + math.sqrt(self._variance) if self.num_texts else math.inf

    def note(self, worth: float) -> None:
        before = min(_MEMORY, self.num_texts / (self.num_texts + 1))
        # The doubt counts as one text more.
        kept = min(_MEMORY, (self.num_texts + 1) / (self.num_texts + 2))
        gap = worth - self._mean
        self._mean += (1 - before) * gap
        self._variance = kept * self._variance + (1 - kept) * (gap * gap if self.num_texts else 0.0)
        self.num_texts += 1


@dataclass(slots=True)
class Shown:
    """By one kind, in one text."""

    num_rounds: int = 0
    num_tokens: int = 0

    @property
    def mean(self) -> float:
        return self.num_tokens / self.num_rounds

    @property
    def is_enough(self) -> bool:
        return self.num_rounds >= TRIAL


@dataclass(slots=True)
class Taste:
    """What one text has seen of each kind."""

    beginning: bytes
    scouts: str = ""
    """The kind that it tries for all."""
    shown: dict[str, Shown] = field(default_factory=lambda: defaultdict(Shown))
    patience: int = TRIAL
    """Rounds that a kind is given before it may be left."""
    num_rounds: int = 0
    """Since it has been with this kind."""


class Fitness:
    def __init__(self) -> None:
        self._standings = defaultdict[str, Standing](Standing)
        self._by_beginning: OrderedDict[bytes, dict[str, Standing]] = OrderedDict()
        self._num_texts = 0

    def begin(self, tokens: Sequence[int], kinds: Collection[str]) -> Taste:
        self._num_texts += 1
        is_scout = self._num_texts % _SCOUTS == 0
        least = min(kinds, key=lambda each: self._standings[each].num_texts) if is_scout else ""
        return Taste(beginning_of(tokens), least)

    def best(self, kinds: Collection[str], taste: Taste) -> str:
        return max(kinds, key=lambda each: self._worth(each, taste))

    def note(self, taste: Taste, kind: str, num_tokens: int) -> None:
        """A round has ended for which this kind had guessed so many tokens right."""
        shown = taste.shown[kind]
        shown.num_rounds += 1
        shown.num_tokens += num_tokens
        taste.num_rounds += 1

    def is_better_elsewhere(self, taste: Taste, kind: str, others: Collection[str]) -> bool:
        """Whether one of the others may clearly be worth more; that is asked now and then."""
        if taste.num_rounds < taste.patience or not others:
            return False
        promised = max(self._worth(each, taste) for each in others)
        return promised > _CLEARLY * self._worth(kind, taste) + _AT_LEAST

    def note_came(self, taste: Taste, kind: str) -> None:
        """It was with another before. Who goes back and forth does so ever more seldom."""
        taste.num_rounds = 0
        if kind in taste.shown:
            taste.patience *= 2

    def end(self, taste: Taste) -> None:
        """The text is over: those that come learn from it."""
        alike = self._by_beginning.setdefault(taste.beginning, defaultdict(Standing))
        self._by_beginning.move_to_end(taste.beginning)
        if len(self._by_beginning) > _KEPT_BEGINNINGS:
            self._by_beginning.popitem(last=False)
        for kind, shown in taste.shown.items():
            if shown.is_enough:
                alike[kind].note(shown.mean)
                self._standings[kind].note(shown.mean)

    def _worth(self, kind: str, taste: Taste) -> float:
        shown = taste.shown.get(kind)
        if shown is not None and shown.is_enough:
            return shown.mean
        if kind == taste.scouts:
            return math.inf
        alike = self._by_beginning.get(taste.beginning, {}).get(kind)
        return (alike or self._standings[kind]).promise
