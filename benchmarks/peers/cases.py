"""How cases of peers are spelled. This engine's own are in src/ssd/bench/cases.py, with one word more.

plain               the peer alone, on all cores
plain+targetcores   the same, on the cores that this engine's target has
draft, draft4       its own speculation with a draft: as far as it likes, or four tokens
ssd4                ours inside it: it verifies on the target's cores, our draft works ahead on its own
ssd+int8+targetint8 this engine's, here `ssd+int8`, with its target in int8
"""

import re
from collections.abc import Sequence

from ssd.config import Precision

ON_TARGET_CORES = "plain+targetcores"
_TARGET_INT8 = "+targetint8"
_SPELLED = re.compile(r"plain(\+targetcores)?|draft\d*|ssd\d+")


def check_peer_cases(cases: Sequence[str]) -> None:
    unknown = [case for case in cases if not _SPELLED.fullmatch(case)]
    if unknown:
        raise ValueError(
            f"--peer-cases: {unknown[0]!r} is none; use plain, {ON_TARGET_CORES}, draft, draft3 …, ssd4 …"
        )


def own_case(case: str) -> tuple[str, Precision]:
    """A case of this engine as src/ssd/bench/cases.py spells it, and the precision of its target."""
    own = case.removesuffix(_TARGET_INT8)
    return own, "model" if own == case else "int8"


def is_plain(case: str) -> bool:
    return case.startswith("plain")


def has_our_draft(case: str) -> bool:
    return case.startswith("ssd")


def is_on_target_cores(case: str) -> bool:
    return case == ON_TARGET_CORES or has_our_draft(case)
