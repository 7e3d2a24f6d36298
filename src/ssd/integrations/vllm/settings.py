"""What vLLM's `--additional-config '{"ssd": {...}}'` may say: one frozen object, unknown keys are errors."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ssd.config import Backup
from ssd.config.checks import refuse_unknown

KEY = "ssd"
_SCHEMES = ("ipc://", "tcp://", "dns://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    draft: str | None = None
    """Where drafts listen: ipc:///path, tcp://host:port, several with commas between them, or dns://name:port
    for all that the name has; None: nobody drafts."""
    draft_keys: str | None = None
    """Folder with the keys of a draft on TCP, as `ssd draft --make-keys` writes it. A path, never a key."""
    coupled: bool = True
    """Tokens are functions of seed and position: the same with any draft or none. False: vLLM's own rule."""
    padded: bool = False
    """Proposals of a step are made equally long, for captured graphs."""
    backup: Backup = "auto"
    """What a row does when the draft did not foresee its token, as in our own engine."""
    draft_timeout: float = 10.0
    """Seconds of silence after which a draft counts as lost."""
    salt: str | None = None
    """What the seeds of requests without one are made with; None: vLLM's instance id, new at every start."""

    def __post_init__(self) -> None:
        self._check_draft()
        for name in ("coupled", "padded"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"ssd.{name}={getattr(self, name)!r}: must be true or false")
        if self.backup not in get_args(Backup):
            raise ValueError(f"ssd.backup={self.backup!r}: use one of {', '.join(get_args(Backup))}")
        if self.salt is not None and (not isinstance(self.salt, str) or not self.salt):
            raise ValueError("ssd.salt must be a text that is not empty, or null")

    def _check_draft(self) -> None:
        addresses = [each.strip() for each in str(self.draft).split(",")] if self.draft is not None else []
        if not all(each.startswith(_SCHEMES) for each in addresses):
            raise ValueError(
                f"ssd.draft={self.draft!r} is no address: start `ssd draft --model SMALL --listen "
                "ipc:///path` and name that address here"
            )
        if self.draft_keys is not None and not isinstance(self.draft_keys, str):
            raise ValueError("ssd.draft_keys must be the path of a folder of keys, or null")
        if self.draft_keys is None and not all(each.startswith("ipc://") for each in addresses):
            raise ValueError(
                f"ssd.draft={self.draft!r} is on TCP and needs ssd.draft_keys: `ssd draft --make-keys FOLDER`"
            )
        is_number = isinstance(self.draft_timeout, int | float) and not isinstance(self.draft_timeout, bool)
        if not is_number or not 0.1 <= self.draft_timeout <= 3600:
            raise ValueError(f"ssd.draft_timeout={self.draft_timeout!r}: must be 0.1 to 3600 seconds")

    @classmethod
    def from_additional_config(cls, config: Mapping[str, Any] | None) -> "Settings":
        """The part that is ours; a misspelt key is named with its nearest neighbour."""
        ours = (config or {}).get(KEY, {})
        if not isinstance(ours, Mapping):
            raise ValueError(f"additional_config.{KEY} must be an object, as in {{'{KEY}': {{'draft': …}}}}")
        known = [field.name for field in dataclasses.fields(cls)]
        refuse_unknown(map(str, ours), known, owner=KEY)
        return cls(**ours)

    def to_additional_config(self) -> dict[str, Any]:
        """What differs from the defaults, as `from_additional_config` reads it."""
        values = dataclasses.asdict(self)
        return {
            KEY: {
                field.name: values[field.name]
                for field in dataclasses.fields(self)
                if values[field.name] != field.default
            }
        }
