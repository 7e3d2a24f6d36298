"""Checks that a version of vLLM has every name that this package uses (`vllm_names.py`).

    python -m ssd.integrations.vllm.contract VERSION|FOLDER …

Reads vLLM's sources without importing them. Used when a worker starts, by `ssd doctor`, by tests and by the
command above, which downloads the sources of a version. Exit codes: 0 the names of at least one model runner
are there, 1 neither runner's are, 2 nothing was checked.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ssd.integrations.vllm import Runner
from ssd.integrations.vllm.released import CACHE, INDEX, Releases, version_in
from ssd.integrations.vllm.signatures import Definition, Package, shown, signature_of
from ssd.integrations.vllm.vllm_names import BOTH, V1, V2

TESTED = ("0.31.0", "0.32.0", "0.33.0")
"""Releases whose sources CI checks against the lists below, oldest first."""


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 33) of 0.33.1+cpu."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:2])


def spelled(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


OLDEST, NEWEST = _numbers(TESTED[0]), _numbers(TESTED[-1])


def _lists(runner: Runner) -> Iterator[tuple[str, Callable[[Definition, str], str]]]:
    """Each list that concerns a runner, and the check of its entries."""
    for names in (BOTH, V1 if runner == "v1" else V2):
        yield from (
            (names.overridden, _why_overridden),
            (names.called, _why_called),
            (names.read, _why_read),
        )


def why_unfit(version: str, folder: Path, runner: Runner = "v1") -> str:
    """Why the vLLM in `folder`, which contains `v1`, cannot be used; empty if it can."""
    if version and _numbers(version) < OLDEST:
        return f"vLLM {version} is too old: install {spelled(OLDEST)} or newer"
    faults = broken(folder, runner)
    if not faults:
        return ""
    return (
        f"vLLM {version} has changed what SSD uses ({'; '.join(faults)}): install one that fits, "
        f"pip install 'vllm>={TESTED[0]},<={TESTED[-1]}'"
    )


def why_untested(version: str) -> str:
    """A warning if a version that fits was never run with SSD; else empty."""
    if OLDEST <= _numbers(version) <= NEWEST:
        return ""
    return (
        f"vLLM {version or 'of an unknown version'} has every name that SSD uses, but was never run with it: "
        f"the newest that was is {spelled(NEWEST)}"
    )


def broken(folder: Path, runner: Runner = "v1") -> list[str]:
    """A sentence for each name that the vLLM in this folder lacks or has changed."""
    package = Package(folder, "vllm")
    faults = list[str]()
    for names, why_broken in _lists(runner):
        for file, name, words in entries(names):
            definition = package.find(file, name)
            fault = "is missing" if definition is None else why_broken(definition, words)
            faults += [f"{name} in {file} {fault}"] if fault else []
    return faults


def entries(names: str) -> Iterator[tuple[str, str, str]]:
    """File, name and parameters of each line."""
    file = ""
    for line in names.strip().split("\n"):
        if line.startswith(" "):
            name, bracket, words = line.strip().partition("(")
            yield file, name, bracket + words
        else:
            file = line


def _why_overridden(definition: Definition, words: str) -> str:
    is_method = definition.kind == "method" and not definition.is_async
    if is_method and definition.signature == signature_of(words):
        return ""
    return f"is {_described(definition)}, and SSD overrides {words}"


def _why_called(definition: Definition, words: str) -> str:
    """Binds SSD's call to the signature, and checks that each argument gets the parameter of its name."""
    wanted = signature_of(words).parameters.values()
    by_place = [each.name for each in wanted if each.kind is not each.KEYWORD_ONLY]
    by_keyword = {each.name: each.name for each in wanted if each.kind is each.KEYWORD_ONLY}
    why = ""
    if definition.kind == "value" or definition.is_async:
        why = "not a plain function"
    else:
        try:
            bound = definition.when_called.bind(*by_place, **by_keyword).arguments
        except TypeError as error:
            why = str(error)
        else:
            if any(name != value for name, value in bound.items()):
                why = "other parameters"
    return f"is {_described(definition)}, and SSD calls {words}: {why}" if why else ""


def _why_read(definition: Definition, words: str) -> str:
    return "" if definition.kind == "value" else f"is {_described(definition)}, and SSD reads a value"


def _described(definition: Definition) -> str:
    signature = "" if definition.kind == "value" else shown(definition.signature)
    return f"{'async ' if definition.is_async else ''}{definition.kind} {signature}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks that vLLM has every name that SSD uses.")
    parser.add_argument("vllm", nargs="+", metavar="VERSION|FOLDER")
    parser.add_argument("--cache", type=Path, default=Path(CACHE), help=f"where sources are kept ({CACHE})")
    parser.add_argument("--index", default=INDEX, help=f"a package index ({INDEX})")
    given = parser.parse_args(arguments)
    releases = Releases(cache=given.cache, index=given.index)
    codes = [_checked(each, releases) for each in given.vllm]
    return 1 if 1 in codes else max(codes)


def _checked(argument: str, releases: Releases) -> int:
    """Writes the verdict on a version or a folder, for each model runner; returns the exit code."""
    try:
        folder = releases.sources_of(argument)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{argument} was not checked: {error}\n")
        return 2
    version = version_in(folder)
    runners: tuple[Runner, ...] = ("v1", "v2")
    refusals = {runner: why_unfit(version, folder, runner) for runner in runners}
    for runner, refusal in refusals.items():
        holds = why_untested(version) or f"vLLM {version} has every name that SSD uses"
        sys.stdout.write(f"{runner.upper()} {'broken' if refusal else 'holds'}: {refusal or holds}\n")
    return int(all(refusals.values()))


if __name__ == "__main__":
    sys.exit(main())
