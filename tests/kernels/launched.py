"""All kernels that the package launches, by the text of their launchers."""

import re
from pathlib import Path

import ssd.kernels


def launched_kernels() -> set[str]:
    """By `name[(…)](…)`."""
    folder = Path(ssd.kernels.__file__).parent
    return {name for path in folder.glob("*.py") for name in re.findall(r"(\w+)\[\(", path.read_text())}
