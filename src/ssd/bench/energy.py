"""Energy of the machine's processors, where Linux lets one read it (/sys/class/powercap)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class _Package:
    counter: Path
    wraps_at: int


class EnergyMeter:
    """Counters of all processor packages together. Parts of a package are left out: it includes them."""

    def __init__(self, folder: Path = _POWERCAP) -> None:
        found = (_package(each) for each in sorted(folder.glob("*-rapl:[0-9]*")))
        self._packages = [each for each in found if each is not None]

    @property
    def is_readable(self) -> bool:
        return bool(self._packages)

    def read(self) -> Mapping[Path, int]:
        return {each.counter: int(each.counter.read_text()) for each in self._packages}

    def joules_since(self, before: Mapping[Path, int]) -> float | None:
        """None where nothing can be read."""
        if not self._packages:
            return None
        now = self.read()
        used = ((now[each.counter] - before[each.counter]) % each.wraps_at for each in self._packages)
        return sum(used) / 1e6


def _package(folder: Path) -> _Package | None:
    if folder.name.count(":") != 1:
        return None
    try:
        int((folder / "energy_uj").read_text())
        return _Package(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text()) + 1)
    except (OSError, ValueError):
        return None
