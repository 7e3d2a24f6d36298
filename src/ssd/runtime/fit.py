"""Whether this machine can do what the settings ask for: answered before anything is downloaded or loaded.

Knows settings and arithmetic, and imports little more than torch: a refusal that could have come first
must not come last, after minutes of loading.
"""

from ssd.config import EngineConfig
from ssd.models.linear import resolve_precision
from ssd.runtime.host import resolve_device, resolve_dtype


def refuse_what_the_machine_lacks(config: EngineConfig) -> None:
    """ValueError with a remedy, from settings alone."""
    device = resolve_device(config.device)
    if config.mode == "ssd" and has_own_draft(config):
        device = resolve_device(config.draft_device)
    if has_own_draft(config):
        resolve_precision(config.draft_precision, device, resolve_dtype(config.dtype, device))


def has_own_draft(config: EngineConfig) -> bool:
    """Whether a draft is loaded here; one at an address is somebody else's."""
    return config.draft is not None and "://" not in config.draft
