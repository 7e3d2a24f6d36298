"""From what a user calls a model to files on this machine, through the Hugging Face hub and its cache.

Names on the hub are `org/name`, `org/name@revision` and `org/name/file.gguf` (names.py).
Only configuration, tokenizer and safetensors are fetched: no pickles. What the hub has once delivered
is found again without a network. Does not open what it finds.
"""

from dataclasses import replace
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ssd.config import EngineConfig
from ssd.models.names import HubName, found_here, parse_hub_name

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")


def with_local_models(config: EngineConfig) -> EngineConfig:
    """The same settings with paths for models; what is missing here is fetched."""
    draft = config.draft
    if draft is not None and not draft.is_elsewhere:
        draft = replace(draft, model=local_model(draft.model, hf_cache=config.hf_cache))
    return replace(config, model=local_model(config.model, hf_cache=config.hf_cache), draft=draft)


def local_model(model: str, *, hf_cache: str | None) -> str:
    """The path of a model; a folder or file of that name comes before the hub."""
    found = found_here(model)
    return str(found) if isinstance(found, Path) else _fetch(found, hf_cache)


def model_title(model: str) -> str:
    """What to call a model: the name of its folder or file, or what the hub calls it."""
    path = Path(model).expanduser()
    return path.name if path.exists() or parse_hub_name(model) is None else model


def _fetch(name: HubName, hf_cache: str | None) -> str:
    cache = str(Path(hf_cache).expanduser()) if hf_cache else None
    try:
        if name.file is not None:
            return str(hf_hub_download(name.repo, name.file, revision=name.revision, cache_dir=cache))
        found = snapshot_download(
            name.repo, revision=name.revision, cache_dir=cache, allow_patterns=list(_FILES)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, EntryNotFoundError) as error:
        raise ValueError(_remedy(name, cache or constants.HF_HUB_CACHE, error)) from error
    except OSError as error:
        raise ValueError(f"{name.repo} could not be stored: {error}") from error
    return str(found)


def _remedy(name: HubName, cache: str, error: Exception) -> str:
    repo, page = name.repo, f"{constants.ENDPOINT}/{name.repo}"
    if isinstance(error, GatedRepoError):
        return f"{repo} is gated: accept its terms on {page}, then log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no folder {repo} here, and no model of that name on the hub that you may read: "
            "check the spelling, or log in with `hf auth login` if it is private"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {name.revision!r}: see {page}"
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"{repo} is not in the cache ({cache}) and the hub cannot be reached: connect, or name a folder "
            "or .gguf file, or point SSD_HF_CACHE at the cache that has it"
        )
    if isinstance(error, EntryNotFoundError):
        return f"{repo} has no file {name.file!r}: see {page}"
    return f"the hub did not give {repo}: {' '.join(str(error).split())}"
