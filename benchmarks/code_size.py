"""How much there is to read: lines, files and classes by package, at one revision or several.

    python -m benchmarks.code_size [--revisions main~20,HEAD]

Below the table: lines of tests, words that the glossary explains, class names with several meanings, the mean
length of a line with code and the longest function. Reads what is committed.
"""

import ast
import io
import re
import subprocess
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from benchmarks.flags import parser

FLAGS = {"revisions": "HEAD"}
PACKAGE = PurePosixPath("src/ssd")


@dataclass
class Package:
    num_lines: int = 0
    num_files: int = 0
    num_classes: int = 0


@dataclass
class Size:
    packages: dict[str, Package] = field(default_factory=dict)
    class_names: Counter[str] = field(default_factory=Counter)
    code_lengths: list[int] = field(default_factory=list)
    longest_function: tuple[int, str] = (0, "")
    test_lines: int = 0
    num_words: int = 0

    def add(self, path: PurePosixPath, text: str) -> None:
        if path == PurePosixPath("docs/glossary.md"):
            self.num_words = len(re.findall(r"\*\*(.+?)\*\*", text))
        elif path.suffix == ".py" and path.parts[0] in ("tests", "campaigns"):
            self.test_lines += text.count("\n")
        elif path.suffix == ".py" and path.is_relative_to(PACKAGE):
            self._add_module(path.relative_to(PACKAGE), text)

    def _add_module(self, path: PurePosixPath, text: str) -> None:
        name = path.parts[0] if len(path.parts) > 1 else "(top)"
        package = self.packages.setdefault(name, Package())
        package.num_lines += text.count("\n")
        package.num_files += 1
        self.code_lengths.extend(len(line) for line in text.splitlines() if line.strip())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                package.num_classes += 1
                self.class_names[node.name] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                self.longest_function = max(self.longest_function, (length, f"{path}:{node.name}"))

    def total(self) -> Package:
        found = self.packages.values()
        return Package(
            sum(each.num_lines for each in found),
            sum(each.num_files for each in found),
            sum(each.num_classes for each in found),
        )

    def summary(self) -> str:
        repeated = sorted(name for name, count in self.class_names.items() if count > 1)
        mean = sum(self.code_lengths) / len(self.code_lengths)
        length, where = self.longest_function
        return (
            f"tests {self.test_lines} lines; glossary {self.num_words} words; "
            f"{len(repeated)} class names used twice or more ({', '.join(repeated) or 'none'}); "
            f"mean line {mean:.1f} characters; longest function {length} lines ({where})"
        )


def size_at(revision: str) -> Size:
    archive = subprocess.run(
        ["git", "archive", revision, "src", "tests", "docs"], check=True, capture_output=True
    )
    found = Size()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        for member in files.getmembers():
            content = files.extractfile(member) if member.name.endswith((".py", ".md")) else None
            if content is not None:
                found.add(PurePosixPath(member.name), content.read().decode())
    return found


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    revisions = options.revisions.split(",")
    sizes = {revision: size_at(revision) for revision in revisions}
    names = sorted({name for size in sizes.values() for name in size.packages})
    print(f"lines, files, classes | {' | '.join(revisions)}")
    for name in [*names, "all"]:
        cells = [size.total() if name == "all" else size.packages.get(name) for size in sizes.values()]
        shown = [
            "-" if each is None else f"{each.num_lines} {each.num_files} {each.num_classes}" for each in cells
        ]
        print(f"{name} | {' | '.join(shown)}")
    for revision, size in sizes.items():
        print(f"{revision}: {size.summary()}")


if __name__ == "__main__":
    main()
