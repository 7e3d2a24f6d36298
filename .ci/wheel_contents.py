"""Whether a wheel holds the package and nothing else: `wheel_contents.py WHEEL`.

Every file of src/ssd is in it, under its name, and beside them only what installers read: no tests, no
benchmarks, no tools. Needs nothing but Python, and knows nothing of how the wheel was made.
"""

import re
import sys
from pathlib import Path
from zipfile import ZipFile

SOURCE = Path(__file__).parent.parent / "src"
METADATA = re.compile(r"ssd_llm-[\w.]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/LICENSE)")


def package_files() -> set[str]:
    files = (path for path in (SOURCE / "ssd").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(SOURCE).as_posix() for path in files}


def faults(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        held = set(archive.namelist())
    metadata = {name for name in held if METADATA.fullmatch(name)}
    return [
        *(f"{name} does not belong into it" for name in sorted(held - metadata - package_files())),
        *(f"{name} is missing" for name in sorted(package_files() - held)),
        *([] if len(metadata) == 5 else [f"of its metadata it has only {sorted(metadata)}"]),
    ]


def main() -> None:
    found = faults(Path(sys.argv[1]))
    if found:
        sys.exit("\n".join(found))
    sys.stdout.write(f"{sys.argv[1]} holds the package and nothing else\n")


if __name__ == "__main__":
    main()
