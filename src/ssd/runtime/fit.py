"""Whether this machine can do what the settings ask for: answered before anything is downloaded or loaded.

Knows settings and arithmetic, and imports little more than torch: a refusal that could have come first
must not come last, after minutes of loading.
"""

from ssd.config import EngineConfig
from ssd.models.linear import resolve_precision
from ssd.runtime.host import resolve_device, resolve_dtype


def check_machine(config: EngineConfig) -> None:
    """ValueError with a remedy, from settings alone."""
    resolve_device(config.device)
    if config.own_draft is not None:
        draft = config.draft_runner
        device = resolve_device(draft.device)
        resolve_precision(draft.precision, device, resolve_dtype(draft.dtype, device))
