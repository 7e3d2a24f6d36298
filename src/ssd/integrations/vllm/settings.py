"""Settings in vLLM's `--additional-config '{"ssd": {...}}'`; unknown keys are errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ssd.config import Backup
from ssd.config.draft import LEAST_TIMEOUT, TIMEOUT_REMEDY
from ssd.config.schema import Setting, changed_settings, check, refuse_unknown

KEY = "ssd"
_SCHEMES = ("ipc://", "tcp://", "dns://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    draft: Annotated[str | None, Setting("Addresses of drafts, separated by commas.")] = None
    draft_keys: Annotated[
        str | None,
        Setting(
            "Folder with keys, for drafts on TCP.", remedy="must be the path of a folder of keys, or null"
        ),
    ] = None
    coupled: Annotated[
        bool, Setting("Sample by seed and position: the same tokens with any draft or none.")
    ] = True
    padded: Annotated[bool, Setting("Pad proposals to equal length, for CUDA graphs.")] = False
    backup: Annotated[Backup, Setting("What to draft with after a miss, as in our own engine.")] = "auto"
    draft_timeout: Annotated[
        float,
        Setting(
            "Idle timeout of the connection to a draft, in seconds.",
            least=LEAST_TIMEOUT,
            most=3600,
            remedy=TIMEOUT_REMEDY,
        ),
    ] = 10.0
    pool_size: Annotated[
        int, Setting("Drafts of a pool that this target uses at a time.", least=1, most=1000)
    ] = 4
    salt: Annotated[
        str | None,
        Setting(
            "Salt for the seeds of requests that have none.",
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
        """Our part of the config. An unknown key raises ValueError with a suggestion."""
        ours = (config or {}).get(KEY, {})
        if not isinstance(ours, Mapping):
            raise ValueError(f"additional_config.{KEY} must be an object, as in {{'{KEY}': {{'draft': …}}}}")
        refuse_unknown(ours, cls, f"{KEY}.")
        return cls(**ours)

    def to_additional_config(self) -> dict[str, Any]:
        """Settings that differ from the defaults, in the form of `from_additional_config`."""
        return {KEY: changed_settings(self)}
