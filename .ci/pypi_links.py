"""Makes relative links of a README absolute: `pypi_links.py README OWNER/NAME TAG`.

PyPI shows the README without the repository. Pages lead to GitHub's view of a file,
pictures to the file itself.
"""

import re
import sys
from pathlib import Path

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def absolute(text: str, repository: str, tag: str) -> str:
    def placed(match: re.Match[str]) -> str:
        mark, name, link = match.groups()
        host = "https://raw.githubusercontent.com" if mark else "https://github.com"
        view = "" if mark else "blob/"
        return f"{mark}[{name}]({host}/{repository}/{view}{tag}/{link})"

    return _LINK.sub(placed, text)


def main() -> None:
    path, repository, tag = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    path.write_text(absolute(path.read_text(), repository, tag))


if __name__ == "__main__":
    main()
