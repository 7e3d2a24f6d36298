"""What all settings share: ranges, choices, and what is said of a name that nobody knows."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args


def require_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """A whole number, and no bool."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        bounds = f"a whole number of at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name}={value!r}: must be {bounds}")


def require_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be between {least} and {most}")


def require_choice(name: str, value: object, kind: Any) -> None:
    """`kind` is a Literal."""
    if value not in get_args(kind):
        raise ValueError(f"{name}={value!r}: use one of {', '.join(get_args(kind))}")


def require_cores(name: str, cores: object) -> None:
    if (
        not isinstance(cores, tuple)
        or any(not isinstance(core, int) or core < 0 for core in cores)
        or len(set(cores)) != len(cores)
    ):
        raise ValueError(f"{name}={cores!r}: a tuple that names each core once, counting from 0")


def weights_of(name: str, said: object) -> dict[str, float]:
    """`("alice=4", "bob=0.5")` → {"alice": 4.0, "bob": 0.5}."""
    found: dict[str, float] = {}
    for each in said if isinstance(said, tuple) else (None,):
        who, _, weight = str(each).partition("=")
        if not who or who in found or not 1e-3 <= _number(weight) <= 1e3:
            raise ValueError(
                f"{name}={said!r}: name each once, with a weight between 0.001 and 1000: alice=4"
            )
        found[who] = float(weight)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def refuse_unknown(given: Iterable[str], known: Sequence[str], *, owner: str = "") -> None:
    """ValueError for the first that is not known, with its nearest neighbour."""
    for key in given:
        if key not in known:
            hint = nearest(key, known, otherwise=f"known settings: {', '.join(known)}")
            raise ValueError(f"unknown setting {f'{owner}.{key}' if owner else key}: {hint}")


def nearest(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """A hint: the known name that was meant, or else what to do without one."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
