"""Finds a model's files on this machine, or downloads them from the Hugging Face hub into its cache.

Names on the hub are `org/name`, `org/name@revision` and `org/name/file.gguf` (names.py). Downloads only
configuration, tokenizer and safetensors: no pickles. Cached files need no network. Does not open the files.
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
from ssd.models.names import HubName, parse_hub_name, path_or_hub_name

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")


def with_local_models(config: EngineConfig) -> EngineConfig:
    """The same settings with local paths for models; downloads missing models."""
    draft = config.draft
    if draft is not None and not draft.is_elsewhere:
        draft = replace(draft, model=local_model(draft.model, hf_cache=config.hf_cache))
    return replace(config, model=local_model(config.model, hf_cache=config.hf_cache), draft=draft)


def local_model(model: str, *, hf_cache: str | None) -> str:
    """The path of a model; a folder or file of that name has priority over the hub."""
    location = path_or_hub_name(model)
    return str(location) if isinstance(location, Path) else _download(location, hf_cache)


def model_title(model: str) -> str:
    """A model's name for users: the name of its folder or file, or its name on the hub."""
    path = Path(model).expanduser()
    return path.name if path.exists() or parse_hub_name(model) is None else model


def _download(name: HubName, hf_cache: str | None) -> str:
    cache = str(Path(hf_cache).expanduser()) if hf_cache else None
    try:
        if name.file is not None:
            return str(hf_hub_download(name.repo, name.file, revision=name.revision, cache_dir=cache))
        folder = snapshot_download(
            name.repo, revision=name.revision, cache_dir=cache, allow_patterns=list(_FILES)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, EntryNotFoundError) as error:
        raise ValueError(_remedy(name, cache or constants.HF_HUB_CACHE, error)) from error
    except OSError as error:
        raise ValueError(f"{name.repo} could not be stored: {error}") from error
    return str(folder)


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
            "or .gguf file, or set SSD_HF_CACHE to a cache that contains it"
        )
    if isinstance(error, EntryNotFoundError):
        return f"{repo} has no file {name.file!r}: see {page}"
    return f"{repo} could not be downloaded from the hub: {' '.join(str(error).split())}"
