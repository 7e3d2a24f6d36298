"""A fault: one piece of source text replaced by another, and the test that must notice."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    path: str
    """Of the source file, from the repository's root."""
    old: str
    """Occurs exactly once in it."""
    new: str
    test: str
    """The pytest id that fails with the fault, and passes without."""
