"""The contract with vLLM: which changes are accepted, which are refused, and that its releases keep it."""

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from ssd.integrations.vllm import contract
from ssd.integrations.vllm.contract import TESTED, broken, main, why_unfit, why_untested
from ssd.integrations.vllm.released import version_in
from ssd.integrations.vllm.vllm_names import BOTH, V1, V2, Names
from tests.vllm.releases import sources

SAMPLER = "v1/sample/sampler.py"
TRUNCATION = "v1/sample/ops/topk_topp_sampler.py"
WORKER = "v1/worker/gpu_worker.py"
PACKAGE = {
    "file.py": """
from vllm.other import moved, Base
from .other import Nearby as Renamed

def called(a, b=1): ...

@overload
def twice(a, b, c): ...
def twice(a): ...

@dataclass
class Record:
    first: int
    second: int = 0

class Overriding(Base):
    field: int
    def __init__(self, size, *, mode=None):
        self.size, self.rest = size, 1
        self.noted: int = 1
    @property
    def shown(self): ...
    @wrapped(1)
    def method(self, a, /, b, *rest, c, d=1, **more): ...
    @staticmethod
    def static(a): ...
    @classmethod
    def made(cls, a): ...
    async def waiting(self): ...
    if True:
        def conditional(self): ...
""",
    "other.py": """
class Base:
    def inherited(self, a): ...
class Nearby: ...
def moved(a): ...
""",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def faults(package: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What is refused of one line in one of the lists."""

    def refused(section: str, line: str) -> str:
        nothing = Names("", "", "")
        monkeypatch.setattr(contract, "BOTH", nothing)
        monkeypatch.setattr(contract, "V1", nothing._replace(**{section: f"file.py\n    {line}"}))
        return " ".join(broken(package))

    return refused


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("called", "called(a)"),
        ("called", "called(a, b)"),
        ("called", "called(*, b, a)"),
        ("called", "twice(a)"),
        ("called", "moved(a)"),
        ("called", "Renamed()"),
        ("called", "Record(*, first)"),
        ("called", "Overriding(size)"),
        ("called", "Overriding.method(a, b, *, c)"),
        ("called", "Overriding.static(a)"),
        ("called", "Overriding.made(a)"),
        ("called", "Overriding.inherited(a)"),
        ("called", "Overriding.conditional()"),
        ("read", "Overriding.field"),
        ("read", "Overriding.size"),
        ("read", "Overriding.rest"),
        ("read", "Overriding.noted"),
        ("read", "Overriding.shown"),
        ("overridden", "Overriding.method(self, a, /, b, *rest, c, d=..., **more)"),
        ("overridden", "Overriding.inherited(self, a)"),
    ],
)
def test_what_is_there_is_accepted(faults: Callable[..., str], section: str, line: str) -> None:
    assert faults(section, line) == ""


@pytest.mark.parametrize(
    ("section", "line", "words"),
    [
        ("called", "lost()", "lost in file.py is missing"),
        ("read", "Overriding.lost", "Overriding.lost in file.py is missing"),
        ("read", "Record.first.more", "is missing"),
        ("called", "called()", "called in file.py is function (a, b=...), and SSD calls (): missing"),
        ("called", "called(a, b, c)", "too many positional"),
        ("called", "called(b)", "other parameters"),
        ("called", "called(a, *, c)", "unexpected keyword argument 'c'"),
        ("called", "Record()", "'first'"),
        ("called", "Overriding.method(a, b)", "'c'"),
        ("called", "Overriding.method(*, a, b, c)", "'a'"),
        ("called", "Overriding.shown()", "is value, and SSD calls"),
        ("called", "Overriding.waiting()", "is async method"),
        ("read", "Overriding.made", "is classmethod (cls, a), and SSD reads a value"),
        (
            "overridden",
            "Overriding.method(self, a, b, *rest, c, d=..., **more)",
            "SSD overrides (self, a, b,",
        ),
        ("overridden", "Overriding.method(self, a, /, b, *rest, c, d, **more)", "d=..."),
        ("overridden", "Overriding.method(self, a, /, b, *rest, c, d=...)", "**more"),
        ("overridden", "Overriding.static(a)", "is staticmethod (a)"),
        ("overridden", "Overriding.waiting(self)", "is async method (self)"),
    ],
)
def test_what_changed_is_named(faults: Callable[..., str], section: str, line: str, words: str) -> None:
    assert words in faults(section, line)


@pytest.mark.parametrize("version", TESTED)
def test_every_tested_release_keeps_the_contract(version: str) -> None:
    folder = sources(version)
    assert version_in(folder) == version
    assert broken(folder) == []
    # SSD on the V2 runner needs 0.32.
    assert bool(broken(folder, "v2")) == (version == "0.31.0")


@pytest.mark.vllm
def test_the_installed_vllm_keeps_the_contract() -> None:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("no vLLM")
    assert broken(Path(spec.origin).parent) == broken(Path(spec.origin).parent, "v2") == []


HARMFUL = (
    (
        SAMPLER,
        "self.logprobs_mode =",
        "self.mode =",
        "Sampler.logprobs_mode in v1/sample/sampler.py is missing",
    ),
    (
        TRUNCATION,
        "has_topp_only_rows: bool = True,\n)",
        "has_topp_only_rows: bool,\n)",
        "'has_topp_only_rows'",
    ),
    (SAMPLER, "def greedy_sample(logits", "def greedy_sample(logits, *, mode", "Sampler.greedy_sample"),
    (
        WORKER,
        '"GrammarOutput | None"\n',
        '"GrammarOutput | None", more: int = 0\n',
        "Worker.sample_tokens in v1",
    ),
    (WORKER, '"SchedulerOutput"\n', '"SchedulerOutput", *, more: int = 0\n', "Worker.execute_model in v1"),
)
HARMLESS = (
    (SAMPLER, "def greedy_sample(logits: torch.Tensor", "def greedy_sample(logits, more=1, *, mode=None"),
    (SAMPLER, "use_fp64_gumbel: bool = False,\n    )", "use_fp64_gumbel: bool = False, more=1)"),
)


def changed(place: Path, changes: Iterable[tuple[str, ...]]) -> Path:
    """The newest tested release with some of its lines replaced."""
    folder = place / "vllm"
    shutil.copytree(sources(TESTED[-1]), folder, copy_function=os.symlink)
    for file, before, after, *_ in changes:
        text = (folder / file).read_text()
        assert before in text
        (folder / file).unlink()
        (folder / file).write_text(text.replace(before, after))
    return folder


def test_harmful_changes_of_the_newest_release_are_refused_by_name(tmp_path: Path) -> None:
    folder = changed(tmp_path, HARMFUL)
    refusal = why_unfit("0.34.0", folder)
    for *_, words in HARMFUL:
        assert words in refusal
    assert refusal.endswith("install one that fits, pip install 'vllm>=0.31.0,<=0.33.0'")
    # Those that vLLM's worker for CPUs inherits are refused twice.
    assert len(broken(folder)) == len(HARMFUL) + 2


def test_added_defaults_of_called_functions_are_accepted(tmp_path: Path) -> None:
    assert why_unfit("0.34.0", changed(tmp_path, HARMLESS)) == ""


def test_every_line_is_missed_where_nothing_is(tmp_path: Path) -> None:
    numbers = [sum(line.startswith(" ") for line in "".join(names).split("\n")) for names in (BOTH, V1, V2)]
    assert len(broken(tmp_path, "v1")) == numbers[0] + numbers[1]
    assert len(broken(tmp_path, "v2")) == numbers[0] + numbers[2]


def test_v2_does_not_need_what_belongs_to_v1(tmp_path: Path) -> None:
    """V1 is to be removed from vLLM."""
    folder = changed(tmp_path, ())
    for file in ("v1/worker/gpu_model_runner.py", SAMPLER, "v1/spec_decode/custom_class_proposer.py"):
        (folder / file).unlink()
    assert broken(folder, "v1")
    assert broken(folder, "v2") == []


def test_versions_are_too_old_tested_or_untested(tmp_path: Path) -> None:
    assert why_unfit("0.30.1", tmp_path) == "vLLM 0.30.1 is too old: install 0.31 or newer"
    assert "too old" not in why_unfit("0.100.0", tmp_path)
    for version in ("0.31.0", "0.33.9", "0.32.1+cpu", "0.33.1.dev3+g1234"):
        assert why_untested(version) == ""
    for version in ("0.34.0", "0.100.0", "1.0.0"):
        assert f"vLLM {version} has every name that SSD uses, but was never run" in why_untested(version)
    assert "an unknown version" in why_untested("")


def test_the_command_says_what_it_could_not_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert main([str(tmp_path)]) == 2
    assert "holds no vLLM" in capsys.readouterr().err
    assert main(["newest"]) == 2
    assert "neither a folder nor a version" in capsys.readouterr().err
    nowhere = ["--index", (tmp_path / "index").as_uri(), "--cache", str(tmp_path)]
    assert main(["0.34.0", *nowhere]) == 2
    assert "0.34.0 was not checked: " in capsys.readouterr().err


def test_the_command_fetches_a_release_checks_its_sum_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From an index of one made-up release, which lacks everything."""
    archive = tmp_path / "vllm-0.34.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in {
            "vllm-0.34.0/vllm/_version.py": "__version__ = version = '0.34.0'",
            "vllm-0.34.0/vllm/v1/__init__.py": "",
            "vllm-0.34.0/setup.py": "raise SystemExit('was run')",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    page = '<a href="../vllm-0.34.0.tar.gz#sha256={}" data-x="y">vllm-0.34.0.tar.gz</a>'
    with serving(tmp_path) as index:
        command = ["0.34.0", "--index", index, "--cache", str(tmp_path / "cache")]
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "index.html").write_text(page.format("0" * 64))
        assert main(command) == 2
        assert "is not the one that" in capsys.readouterr().err
        (tmp_path / "vllm" / "index.html").write_text(page.format(digest))
        assert main(command) == 1
        assert capsys.readouterr().out.startswith("V1 broken: vLLM 0.34.0 has changed what SSD uses (Worker.")
    assert main(command) == 1, "it is in the cache"
    assert [each.name for each in (tmp_path / "cache").rglob("*.py")] == ["_version.py", "__init__.py"]


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
