"""A vLLM whose Python is that of another release, over the compiled libraries of the one that is installed.

For releases that have no build for CPUs. Nothing of vLLM is copied: the folder is made of links.
"""

from importlib.util import find_spec
from pathlib import Path


def overlaid(place: Path, sources: Path, version: str) -> Path:
    """A folder for PYTHONPATH; `sources` is the other release's own folder, Python files only."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    _link(sources, place / "vllm", list(sources.rglob("*.py")))
    others = [each for each in installed.rglob("*") if each.is_file() and each.suffix not in (".py", ".pyc")]
    _link(installed, place / "vllm", others)
    # By its name vLLM asks for its version, and whether it was built for CPUs.
    about = place / f"vllm-{version}+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return place


def _link(source: Path, target: Path, files: list[Path]) -> None:
    for each in files:
        link = target / each.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(each)
