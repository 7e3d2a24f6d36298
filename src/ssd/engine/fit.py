"""Whether what is asked for can be had here: answered before anything is downloaded or loaded.

Knows settings, this machine's arithmetic and the headers of models. Loading takes minutes; a refusal that
could have come first must not come last.
"""

from ssd.config import EngineConfig
from ssd.models.checkpoint import open_checkpoint
from ssd.models.linear import resolve_precision
from ssd.models.vocabulary import common_vocabulary
from ssd.runtime.host import resolve_device, resolve_dtype


def refuse_what_the_machine_lacks(config: EngineConfig) -> None:
    """ValueError with a remedy, from settings alone."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    if config.mode == "sd":
        resolve_precision(config.draft_precision, device, dtype)
    elif has_own_draft(config):
        draft_device = resolve_device(config.draft_device)
        resolve_precision(config.draft_precision, draft_device, resolve_dtype(config.dtype, draft_device))


def refuse_another_tokenizer(config: EngineConfig) -> None:
    """ValueError if draft and target mean different things by a token, from their headers alone."""
    if config.mode == "sd" or has_own_draft(config):
        common_vocabulary(open_checkpoint(config.model), open_checkpoint(str(config.draft)))


def has_own_draft(config: EngineConfig) -> bool:
    """Whether the engine starts a draft that works ahead; one at an address is somebody else's."""
    return config.mode == "ssd" and config.draft is not None and "://" not in config.draft
