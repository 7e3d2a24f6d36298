"""The notes of a release, which are its section of CHANGELOG.md: `release_notes.py VERSION`.

The section has to have a date, and nothing may wait under "Unreleased". Paragraphs are one line each, because
GitHub shows every line break of notes.
"""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def section(text: str, version: str) -> str:
    waiting = re.search(r"^## Unreleased\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    if waiting and waiting[1].strip():
        raise ValueError("CHANGELOG.md has entries under Unreleased: move them to this version")
    head = rf"^## {re.escape(version)} \(20\d\d-\d\d-\d\d\)\n"
    found = re.search(head + r"(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ValueError(f"CHANGELOG.md has no dated section for {version}")
    return re.sub(r"(?<=\S)\n {0,2}(?=[^\s#-])", " ", found[1].strip()) + "\n"


def main() -> None:
    try:
        sys.stdout.write(section(CHANGELOG.read_text(), sys.argv[1]))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
