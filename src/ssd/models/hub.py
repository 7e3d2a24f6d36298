"""Finds a model's files on this machine, or downloads them from the Hugging Face hub into its cache.

Names on the hub are `org/name`, `org/name@revision` and `org/name/file.gguf` (names.py). Downloads only
configuration, tokenizer and safetensors: no pickles. Cached files need no network. Does not open the files.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ssd.config import EngineConfig
from ssd.models.names import HubName, parse_hub_name, path_or_hub_name

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""An error of httpx or httpx2, depending on the client's version."""
_UNREACHED = (OfflineModeIsEnabled, _HTTP_ERROR)
"""Raised without a network."""
_ASK_SECONDS = 5.0
_NEWEST = "main"
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


def find_model_files(model: str, *, hf_cache: str | None) -> Path | None:
    """The path of a model that is on this machine; None if it can be downloaded from the hub.

    ValueError with a remedy if it is neither. Asks the hub, but downloads nothing.
    """
    location = path_or_hub_name(model)
    if isinstance(location, Path):
        return location
    cache = _cache(hf_cache)
    where: dict[str, Any] = {"revision": location.revision, "cache_dir": cache}
    with suppress(LocalEntryNotFoundError, OSError):
        if location.file is not None:
            return Path(hf_hub_download(location.repo, location.file, local_files_only=True, **where))
        where["allow_patterns"] = list(_FILES)
        return Path(snapshot_download(location.repo, local_files_only=True, **where))
    try:
        HfApi().model_info(location.repo, revision=location.revision or _NEWEST, timeout=_ASK_SECONDS)
    except HfHubHTTPError as error:
        raise ValueError(_remedy(location, cache or constants.HF_HUB_CACHE, error)) from error
    except _UNREACHED as error:
        if "Timeout" in type(error).__name__:
            return None  # A slow hub may still serve the download, which has longer timeouts.
        raise ValueError(_unreached(location, cache or constants.HF_HUB_CACHE)) from error
    return None


def model_title(model: str) -> str:
    """A model's name for users: the name of its folder or file, or its name on the hub."""
    path = Path(model).expanduser()
    return path.name if path.exists() or parse_hub_name(model) is None else model


def _download(name: HubName, hf_cache: str | None) -> str:
    cache = _cache(hf_cache)
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


def _cache(hf_cache: str | None) -> str | None:
    return str(Path(hf_cache).expanduser()) if hf_cache else None


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
        return _unreached(name, cache)
    if isinstance(error, EntryNotFoundError):
        return f"{repo} has no file {name.file!r}: see {page}"
    return f"{repo} could not be downloaded from the hub: {' '.join(str(error).split())}"


def _unreached(name: HubName, cache: str) -> str:
    return (
        f"{name.repo} is not in the cache ({cache}) and the hub cannot be reached: connect, or name a folder "
        "or .gguf file, or set SSD_HF_CACHE to a cache that contains it"
    )
