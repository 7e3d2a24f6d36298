"""Cases of a benchmark: a mode with its settings, a batch size and a temperature.

Knows the names of cases, their settings, and which of them can run on this machine. `None` stands for the
engine's default; EngineConfig checks values. Imports no engine, so that mistakes are refused at once.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from ssd.config import Backup, DraftConfig, EngineConfig, GrowthPolicyName, Mode, Precision

HOW_SPELLED = (
    "ar, sd, sd4, ssd or ssd8 (a mode and its lookahead), with any of +int8 +head32768 +width8 +children4 "
    "+lookup0 +growth=geometric +backup=ngram +allcores +t0.7 +b8"
)
_NUMBERS = {
    "head": "draft_head", "width": "draft_width", "children": "draft_children", "lookup": "draft_lookup",
    "t": "temperature", "b": "batch_size",
}  # fmt: skip
_WORDS: dict[str, tuple[str, Any]] = {
    "int8": ("draft_precision", "int8"),
    "allcores": ("all_cores", True),
}
_NOT_SETTINGS = ("batch_size", "temperature", "all_cores")
OF_THE_DRAFT = {
    "draft_width": "width", "draft_children": "children", "draft_lookup": "lookup",
    "draft_precision": "precision", "draft_head": "head", "growth": "growth",
}  # fmt: skip
"""Settings of DraftConfig by their names in a case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    mode: Mode
    lookahead: int | None = None
    draft_width: int | None = None
    draft_children: int | None = None
    draft_lookup: int | None = None
    draft_precision: Precision | None = None
    draft_head: int | None = None
    growth: GrowthPolicyName | None = None
    backup: Backup | None = None
    all_cores: bool = False
    """The target also uses the draft's cores: for modes whose draft needs no cores of its own."""
    batch_size: int = 1
    """Number of prompts that run together."""
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.all_cores and self.mode == "ssd":
            raise ValueError("+allcores with ssd: there the draft needs cores of its own")
        if self.batch_size < 1 or self.temperature < 0:
            raise ValueError(f"{self.name}: a batch has at least one prompt, a temperature is at least 0")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for EngineConfig, without its draft: only those that the case names."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        others = (*_NOT_SETTINGS, *OF_THE_DRAFT)
        return {name: value for name, value in fields.items() if name not in others and value is not None}

    @property
    def draft_settings(self) -> dict[str, Any]:
        """Settings for DraftConfig."""
        named = {setting: getattr(self, name) for name, setting in OF_THE_DRAFT.items()}
        return {setting: value for setting, value in named.items() if value is not None}

    @property
    def name(self) -> str:
        """The form that `parse_case` reads, without batch size and temperature."""
        words = [f"{self.mode}{self.lookahead or ''}"]
        for word, (field, value) in _WORDS.items():
            words += [word] if getattr(self, field) == value else []
        for letter, field in _NUMBERS.items():
            value = getattr(self, field)
            if field not in _NOT_SETTINGS and value is not None:
                words.append(f"{letter}{value:g}")
        words += [f"{field}={value}" for field in ("growth", "backup") if (value := getattr(self, field))]
        return "+".join(words)

    @property
    def label(self) -> str:
        """The name with temperature and batch size: no two cases of a run share it."""
        return f"{self.name}+t{self.temperature:g}+b{self.batch_size}"


def parse_case(text: str) -> Case:
    """`ssd+int8+growth=geometric` → the case of that name."""
    head, *words = text.strip().split("+")
    match = re.fullmatch(r"(ar|sd|ssd)(\d*)", head)
    if match is None:
        near = difflib.get_close_matches(head, get_args(Mode), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"{text!r} is no case: {hint}A case is {HOW_SPELLED}")
    fields: dict[str, Any] = {"mode": match[1]}
    if match[2]:
        fields["lookahead"] = int(match[2])
    for word in words:
        name, value = _field_of(word, text)
        fields[name] = value
    return Case(**fields)


def _field_of(word: str, text: str) -> tuple[str, Any]:
    if word in _WORDS:
        return _WORDS[word]
    name, is_named, value = word.partition("=")
    if is_named and name in ("growth", "backup"):
        return name, value
    match = re.fullmatch(r"([a-z]+)=?(\d+|\d*\.\d+)", word)
    if match is None or match[1] not in _NUMBERS:
        raise ValueError(f"{text!r}: {word!r} is unknown. A case is {HOW_SPELLED}")
    field = _NUMBERS[match[1]]
    is_whole = field != "temperature"
    if is_whole and "." in match[2]:
        raise ValueError(f"{text!r}: {match[1]} is a whole number")
    return field, int(match[2]) if is_whole else float(match[2])


def cases_of(text: str, temperatures: Sequence[float], batch_sizes: Sequence[int]) -> list[Case]:
    """Every named case at every temperature and batch size, unless the case names its own."""
    cases: dict[Case, None] = {}
    for each in filter(None, (word.strip() for word in text.split(","))):
        case, words = parse_case(each), each.split("+")[1:]
        own_t = any(re.fullmatch(r"t=?[\d.]+", word) for word in words)
        own_b = any(re.fullmatch(r"b=?\d+", word) for word in words)
        for temperature in [case.temperature] if own_t else temperatures:
            for batch_size in [case.batch_size] if own_b else batch_sizes:
                cases[replace(case, temperature=temperature, batch_size=batch_size)] = None
    if not cases:
        raise ValueError(f"no case is named: a case is {HOW_SPELLED}")
    return list(cases)


def refuse_cases(config: EngineConfig, draft: DraftConfig | None, cases: Sequence[Case]) -> None:
    """ValueError for cases that cannot run on this machine, before anything is downloaded or loaded."""
    from ssd.runtime.host import check_machine  # imports torch, which reports do not need

    named = next((case.name for case in cases if case.mode != "ar"), None)
    if draft is None and named is not None:
        raise ValueError(f"case {named} needs a draft: name a small model of the same family with --draft")
    if draft is not None and draft.is_elsewhere:
        raise ValueError("a bench starts its drafts itself: name a model with --draft, not an address")
    for case in cases:
        check_machine(with_case(config, case, draft))


def with_case(config: EngineConfig, case: Case, draft: DraftConfig | None) -> EngineConfig:
    """The case's settings. `auto` precision becomes `model`, so that a case is the same on every machine."""
    if draft is not None and draft.precision == "auto":
        draft = replace(draft, precision="model")
    if draft is not None:
        draft = None if case.mode == "ar" else replace(draft, **case.draft_settings)
    return replace(config, draft=draft, **case.settings)
