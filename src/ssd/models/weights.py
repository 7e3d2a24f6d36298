"""Reads weights by their Hugging Face names.

Knows safetensors folders, single or sharded. Does not know which tensors a model needs. Does not read pickled
checkpoints: loading one can run code.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

INDEX_FILE = "model.safetensors.index.json"


class ProgressBar(Protocol):
    """The part of tqdm's interface that is used."""

    def update(self, n: int, /) -> object: ...

    def close(self) -> object: ...


ShowProgress = bool | Callable[[str, int], ProgressBar]
"""Whether to show progress bars, or a function that makes one from a description and a number of steps."""


def progress_bar(description: str, total: int, *, unit: str, show: ShowProgress) -> ProgressBar:
    if not isinstance(show, bool):
        return show(description, total)
    bar: ProgressBar = tqdm(total=total, desc=description, unit=unit, leave=False, disable=not show)
    return bar


class WeightSource(Protocol):
    def names(self) -> frozenset[str]: ...

    def read(self, name: str) -> Tensor: ...

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies, if the checkpoint contains them as a tensor."""
        ...


class SafetensorsSource:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _tensor_index(folder)

    def names(self) -> frozenset[str]:
        return frozenset(self._file_of)

    def read(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise ValueError(f"{self._folder} has no tensor {name!r}: the checkpoint is incomplete")
        with _opened(self._folder / self._file_of[name]) as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def rope_factors(self) -> Tensor | None:
        return None


def _tensor_index(folder: Path) -> dict[str, str]:
    """Tensor name → file name."""
    index = folder / INDEX_FILE
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        missing = sorted({name for name in weight_map.values() if not (folder / name).is_file()})
        if missing:
            raise ValueError(f"{folder} lacks {', '.join(missing)}: download the checkpoint again")
        return weight_map
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(
            f"{folder} has no .safetensors files; pickled .bin checkpoints are not read, convert them first"
        )
    file_of: dict[str, str] = {}
    for path in files:
        with _opened(path) as file:
            file_of.update(dict.fromkeys(file.keys(), path.name))
    return file_of


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or truncated: download it again") from error


class TrackedSource:
    """A source that records which tensors were read.

    An unread tensor means that the forward would be wrong, for example without a bias that the configuration
    does not mention.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._read: set[str] = set()

    def names(self) -> frozenset[str]:
        return self._source.names()

    def read(self, name: str) -> Tensor:
        self._read.add(name)
        return self._source.read(name)

    def rope_factors(self) -> Tensor | None:
        return self._source.rope_factors()

    def refuse_unread(self, *, tied: bool) -> None:
        """ValueError if the checkpoint contains weights that the model does not use."""
        unread = self.names() - self._read - ({"lm_head.weight"} if tied else set())
        # Older checkpoints contain the rotary frequencies, which are computed here.
        unknown = sorted(name for name in unread if not name.endswith("rotary_emb.inv_freq"))
        if unknown:
            raise ValueError(
                f"the checkpoint has {len(unknown)} tensors that this architecture does not use, such as "
                f"{unknown[0]!r}: it does not match its configuration"
            )


class ProgressSource:
    """A source that shows a progress bar as its tensors are read."""

    def __init__(self, source: WeightSource, description: str, *, show: ShowProgress) -> None:
        self._source = source
        self._bar = progress_bar(description, len(source.names()), unit="tensor", show=show)

    def names(self) -> frozenset[str]:
        return self._source.names()

    def read(self, name: str) -> Tensor:
        tensor = self._source.read(name)
        self._bar.update(1)
        return tensor

    def rope_factors(self) -> Tensor | None:
        return self._source.rope_factors()

    def close(self) -> None:
        self._bar.close()
