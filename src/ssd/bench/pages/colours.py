"""Which colour a case has on a page: one hue for a mode, shades within it."""

from collections.abc import Sequence

from ssd.bench.cases import Case

_SHADES = 4


class Colours:
    def __init__(self, cases: Sequence[Case]) -> None:
        names = list(dict.fromkeys((case.mode, case.name) for case in cases))
        self._shades: dict[str, str] = {}
        for mode in ("ar", "sd", "ssd"):
            of_mode = [name for each, name in names if each == mode]
            self._shades |= {name: f"{mode}-{place % _SHADES}" for place, name in enumerate(of_mode)}

    def css(self, case: Case) -> str:
        """A class of the page's style; temperature and batch size do not matter to it."""
        return self._shades[case.name]
