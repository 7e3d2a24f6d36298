"""A fault: one piece of source text replaced by another. Of some it is known which test must notice."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    path: str
    """Of the source file, from the repository's root."""
    old: str
    """Occurs exactly once in it."""
    new: str


@dataclass(frozen=True, slots=True)
class Fault(Change):
    test: str
    """The pytest id that fails with the fault, and passes without."""


@dataclass(frozen=True, slots=True)
class BlindFault(Change):
    """Thought of by someone who had not read the tests."""

    harm: str
    """What somebody would notice."""
