"""All paths of a program whose chance goes through one chooser, by replay.

A path is a list of branches. The program is run with a chooser that follows a prescribed beginning and takes
the first possible branch from there on; every branch it passed by is the beginning of another path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from ssd.sampling import Chooser, Stream
from ssd.sampling.chooser import Weights

Result = TypeVar("Result", bound=Hashable)


@dataclass
class PathChooser:
    prescribed: tuple[int, ...]
    path: tuple[int, ...] = ()
    probability: float = 1.0
    passed_by: list[tuple[int, ...]] = field(default_factory=list)
    made: set[tuple[Stream, int]] = field(default_factory=set)

    def choose(self, weights: Weights, stream: Stream, position: int) -> int:
        # A number that decided something may not decide anything else.
        assert stream is Stream.DRAFT or (stream, position) not in self.made
        self.made.add((stream, position))
        exact = np.asarray(weights, np.float64)
        possible = [int(i) for i in np.flatnonzero(exact)]
        depth = len(self.path)
        if depth < len(self.prescribed):
            taken = self.prescribed[depth]
        else:
            taken = possible[0]
            self.passed_by += [(*self.path, other) for other in possible[1:]]
        self.path += (taken,)
        self.probability *= float(exact[taken] / exact.sum())
        return taken


@dataclass(frozen=True)
class Law(Generic[Result]):
    """How likely each result is, and from how many paths that is known."""

    probabilities: dict[Result, float]
    num_paths: int


def law_of(program: Callable[[Chooser], Result]) -> Law[Result]:
    probabilities: dict[Result, float] = defaultdict(float)
    num_paths, pending = 0, list[tuple[int, ...]]([()])
    while pending:
        chooser = PathChooser(pending.pop())
        probabilities[program(chooser)] += chooser.probability
        pending += chooser.passed_by
        num_paths += 1
    return Law(dict(probabilities), num_paths)
