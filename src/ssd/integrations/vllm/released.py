"""Downloads the Python sources of a vLLM release, for checking the contract.

Uses the source archive on the package index (45 MB; wheels have 340), checks its sum, and keeps the sources
in a cache. Installs and builds nothing.
"""

import contextlib
import hashlib
import html
import io
import re
import tarfile
import tempfile
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CACHE = "~/.cache/ssd-vllm-sources"
INDEX = "https://pypi.org/simple"
_SECONDS = 60
"""Idle timeout of a download in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """Finds sources of vLLM releases. Methods raise OSError or ValueError if sources are not available."""

    cache: Path = Path(CACHE)
    index: str = INDEX

    def sources_of(self, argument: str) -> Path:
        """vLLM's own folder, the one that holds `v1`: of a folder that is given, or of a version."""
        given = Path(argument).expanduser()
        if given.is_dir():
            return given if (given / "v1").is_dir() else _inner(given)
        if not re.fullmatch(r"\d+(\.\w+)+", argument):
            raise ValueError("it is neither a folder nor a version such as 0.33.0")
        return self.cached(argument) or self._fetched(argument)

    def cached(self, version: str) -> Path | None:
        """Sources that were fetched before."""
        found = self.cache.expanduser() / version / "vllm"
        return found if found.is_dir() else None

    def _fetched(self, version: str) -> Path:
        page = f"{self.index.rstrip('/')}/vllm/"
        link = re.search(
            rf'href="([^"]*/vllm-{re.escape(version)}\.tar\.gz)#sha256=(\w+)"', _get(page).decode()
        )
        if link is None:
            raise ValueError(f"{page} lists no source archive of vLLM {version}")
        archive = _get(urllib.parse.urljoin(page, html.unescape(link[1])))
        if hashlib.sha256(archive).hexdigest() != link[2]:
            raise ValueError(f"the source archive of vLLM {version} is not the one that {page} lists")
        return _unpacked(archive, version, self.cache.expanduser())


def version_in(folder: Path) -> str:
    """The version that vLLM's own folder states; empty where it states none."""
    written = folder / "_version.py"
    text = written.read_text(encoding="utf-8") if written.is_file() else ""
    found = re.search(r"version = '([^']+)'", text)
    return found[1] if found else ""


def _inner(folder: Path) -> Path:
    found = folder / "vllm"
    if not (found / "v1").is_dir():
        raise ValueError(f"{folder} holds no vLLM: name the folder `vllm` that has `v1` in it")
    return found


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def _unpacked(archive: bytes, version: str, cache: Path) -> Path:
    """Unpack the Python files of vLLM's package. Several processes may do so at the same time."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        place = Path(made) / version
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                _, *parts = Path(member.name).parts
                if (
                    member.isfile()
                    and member.name.endswith(".py")
                    and parts[0] == "vllm"
                    and ".." not in parts
                ):
                    _write(place.joinpath(*parts), tar.extractfile(member))
        with contextlib.suppress(OSError):  # Another process was quicker.
            place.rename(cache / version)
    return cache / version / "vllm"


def _write(path: Path, content: IO[bytes] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read() if content else b"")
