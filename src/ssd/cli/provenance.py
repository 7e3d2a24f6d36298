"""Versions, commit and machine of a measurement."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from ssd.cli import machine
from ssd.version import __version__

if TYPE_CHECKING:
    from ssd.bench.manifest import Provenance

_PACKAGES = ("torch", "transformers", "numpy", "safetensors")


def provenance() -> Provenance:
    from ssd.bench.manifest import Provenance

    return Provenance(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        versions={"ssd": __version__, "python": platform.python_version(), **_versions()},
        hardware=_hardware(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _hardware() -> dict[str, str]:
    from ssd.runtime.cores import physical_cores

    return {
        "processor": machine.processor(),
        "cores": machine.kinds_of_cores(physical_cores()),
        "instructions": machine.instructions(),
        "memory": machine.total_memory(),
        "GPUs": ", ".join(machine.gpu_names()) or "none",
        "system": platform.platform(),
    }


def _commit() -> str | None:
    """Commit of the running source if it is a git work tree; marked if files were changed."""
    here = Path(__file__).parent
    said = _git(here, "rev-parse", "--short=12", "HEAD")
    if said is None or _git(here, "ls-files", "--error-unmatch", __file__) is None:
        return None
    return f"{said} (changed)" if _git(here, "status", "--porcelain", "--", "..") else said


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
