"""What vLLM's `--additional-config '{"ssd": {...}}'` may say: one frozen object, unknown keys are errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ssd.config import Backup
from ssd.config.schema import Setting, check, refuse_unknown, said

KEY = "ssd"
_SCHEMES = ("ipc://", "tcp://", "dns://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    draft: Annotated[str | None, Setting("Where drafts listen.")] = None
    draft_keys: Annotated[
        str | None,
        Setting(
            "Folder with the keys of a draft on TCP.", remedy="must be the path of a folder of keys, or null"
        ),
    ] = None
    coupled: Annotated[
        bool, Setting("Tokens are functions of seed and position: the same with any draft or none.")
    ] = True
    padded: Annotated[bool, Setting("Proposals of a step are made equally long, for captured graphs.")] = (
        False
    )
    backup: Annotated[
        Backup, Setting("What a row does when the draft did not foresee its token, as in our own engine.")
    ] = "auto"
    draft_timeout: Annotated[
        float, Setting("Seconds of silence after which a draft counts as lost.", least=0.1, most=3600)
    ] = 10.0
    salt: Annotated[
        str | None,
        Setting(
            "What the seeds of requests without one are made with.",
            remedy="must be a text that is not empty, or null",
        ),
    ] = None

    def __post_init__(self) -> None:
        check(self, f"{KEY}.")
        addresses = [each.strip() for each in self.draft.split(",")] if self.draft is not None else []
        if not all(each.startswith(_SCHEMES) for each in addresses):
            raise ValueError(
                f"ssd.draft={self.draft!r} is no address: start `ssd draft --model SMALL --listen "
                "ipc:///path` and name that address here"
            )
        if self.draft_keys is None and not all(each.startswith("ipc://") for each in addresses):
            raise ValueError(
                f"ssd.draft={self.draft!r} is on TCP and needs ssd.draft_keys: `ssd draft --make-keys FOLDER`"
            )

    @classmethod
    def from_additional_config(cls, config: Mapping[str, Any] | None) -> "Settings":
        """The part that is ours; a misspelt key is named with its nearest neighbour."""
        ours = (config or {}).get(KEY, {})
        if not isinstance(ours, Mapping):
            raise ValueError(f"additional_config.{KEY} must be an object, as in {{'{KEY}': {{'draft': …}}}}")
        refuse_unknown(ours, cls, f"{KEY}.")
        return cls(**ours)

    def to_additional_config(self) -> dict[str, Any]:
        """What differs from the defaults, as `from_additional_config` reads it."""
        return {KEY: said(self)}
