"""Which colour a case has on a page, and what it is called there: one hue for a mode, shades within it."""

from collections.abc import Callable, Sequence

from ssd.bench.cases import Case

_SHADES = 4


class Colours:
    def __init__(self, cases: Sequence[Case], name_of: Callable[[Case], str]) -> None:
        names = list(dict.fromkeys((case.mode, case.name) for case in cases))
        self._shades: dict[str, str] = {}
        for mode in ("ar", "sd", "ssd"):
            of_mode = [name for each, name in names if each == mode]
            self._shades |= {name: f"{mode}-{place % _SHADES}" for place, name in enumerate(of_mode)}
        self._name_of = name_of

    def css(self, case: Case) -> str:
        """A class of the page's style."""
        return self._shades[case.name]

    def name(self, case: Case) -> str:
        return self._name_of(case)
