"""The architecture, held by tests: which package may import which, and what needs no extra."""

import ast
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import ssd

ROOT = Path(ssd.__file__).parent
BENCHMARKS = ROOT.parents[1] / "benchmarks"
"""In no wheel: it may import the package, which never imports it."""

# Each package may import those of the layers before its own, and itself.
LAYERS = (
    {"config", "errors", "moving_average", "ngram", "version"},
    {"processes", "sampling", "kvcache"},
    {"kernels"},
    {"attention"},
    {"models"},
    {"runtime"},
    {"draft"},
    {"decoding"},
    {"engine", "planning"},
    {"worker"},
    {"integrations"},
    {"server", "bench"},
    {"selftest"},
    {"cli"},
    {"__main__"},
)
OPTIONAL = (
    *("triton", "vllm", "datasets", "scipy", "matplotlib", "openai"),
    *("fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"),
)
SERVER = "ssd.server"
"""The one package that stands on its extra; nothing outside it imports it but the command that starts it."""
PURE = (
    "ssd",
    "ssd.config",
    "ssd.kvcache.block_manager",
    "ssd.engine.scheduler",
    "ssd.runtime.layout",
    "ssd.draft.protocol.messages",
    "ssd.planning.deployment",
)

VLLM = tuple(f"ssd.integrations.vllm.{name}" for name in ("present", "runner_v2", "sampler", "worker"))
"""What vLLM itself imports, and nobody else: it stands on vLLM."""

DRAFT = {
    "protocol": {"protocol"},
    "client": {"protocol", "client"},
    "tree": {"protocol", "tree"},
    "server": {"protocol", "tree", "server"},
    "conformance": {"protocol", "conformance"},
    "__init__": set[str](),
}
"""What each part of draft/ may import of the others: the two sides meet only in the protocol."""


def modules() -> list[str]:
    return ["ssd", *(info.name for info in pkgutil.walk_packages([str(ROOT)], "ssd."))]


def layer_of(module: str) -> int:
    package = module.split(".")[1]
    return next(level for level, packages in enumerate(LAYERS) if package in packages)


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Relative imports and `from ssd import …` would hide what they reach.
            assert node.level == 0, f"{path} imports relatively"
            assert node.module != "ssd", f"{path} imports from the package's front"
            found.add(node.module or "")
    return found


def files() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    module = ".".join(("ssd", *path.relative_to(ROOT).with_suffix("").parts))
    package = module.split(".")[1]
    for imported in imports_of(path):
        assert imported.split(".")[0] not in ("benchmarks", "tests"), f"{module} imports {imported}"
        if not imported.startswith("ssd.") or imported.split(".")[1] == package:
            continue
        assert layer_of(imported) < layer_of(module), f"{module} imports {imported}"


@pytest.mark.parametrize("part", DRAFT)
def test_the_two_sides_of_the_wire_meet_only_in_the_protocol(part: str) -> None:
    folder = ROOT / "draft" / part
    for path in folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]:
        imported = {name.split(".")[2] for name in imports_of(path) if name.startswith("ssd.draft.")}
        assert imported <= DRAFT[part], f"{path} imports {sorted(imported - DRAFT[part])}"


def test_every_part_of_the_draft_has_its_rule() -> None:
    parts = {path.stem for path in (ROOT / "draft").iterdir() if path.name != "__pycache__"}
    assert parts == DRAFT.keys()


def test_every_module_is_in_a_layer_and_has_a_docstring() -> None:
    for path in files():
        layer_of(".".join(("ssd", *path.relative_to(ROOT).with_suffix("").parts)))
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} does not say what it knows"


def test_every_class_has_a_name_of_its_own() -> None:
    names = [
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_module_imports_without_any_extra() -> None:
    """In a fresh interpreter in which the optional packages cannot be imported."""
    names = [name for name in modules() if not name.startswith(SERVER) and name not in VLLM]
    program = (
        "import sys, importlib\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
        f"[importlib.import_module(name) for name in {names!r}]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_pure_modules_need_no_torch() -> None:
    program = (
        "import sys, importlib; sys.modules['torch'] = None\n"
        f"[importlib.import_module(name) for name in {list(PURE)!r}]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def assert_never_imported(foreign: Sequence[str], *, by: Sequence[str]) -> None:
    program = (
        "import sys, importlib\n"
        f"[importlib.import_module(name) for name in {by!r}]\n"
        f"found = [name for name in {list(foreign)!r} if name in sys.modules]\n"
        "sys.exit(f'imported too: {found}' if found else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_client_side_of_the_draft_needs_no_engine() -> None:
    """Neither by its own imports nor by theirs: no torch, no models, no runtime."""
    parts = tuple(f"ssd.draft.{part}" for part in ("client", "protocol", "conformance"))
    names = [name for name in modules() if name.startswith(parts)]
    foreign = ("torch", "gguf", "ssd.models", "ssd.runtime", "ssd.sampling", "ssd.decoding", "ssd.engine")
    assert_never_imported(foreign, by=names)


def test_what_runs_inside_another_engine_needs_none_of_ours() -> None:
    """Neither by its own imports nor by theirs: no models, no runtime, no engine, and no vLLM either."""
    names = [name for name in modules() if name.startswith("ssd.integrations") and name not in VLLM]
    foreign = ("vllm", "gguf", "ssd.models", "ssd.runtime", "ssd.decoding", "ssd.engine", "ssd.server")
    assert_never_imported(foreign, by=names)
    for name in VLLM:
        imported = imports_of(ROOT.parent.joinpath(*name.split(".")).with_suffix(".py"))
        allowed = ("ssd.integrations.vllm.", "ssd.sampling.", "ssd.draft.")
        assert all(each.startswith(allowed) for each in imported if each.startswith("ssd.")), name


@pytest.mark.parametrize("module", VLLM)
def test_what_needs_vllm_says_how_to_get_it(module: str) -> None:
    program = f"import sys, importlib; sys.modules['vllm'] = None; importlib.import_module({module!r})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "ImportError: SSD inside vLLM needs vLLM: pip install" in run.stderr


CALLED_BY_OTHERS = {
    *("callback", "capture_signals", "collect", "describe", "force_exit"),  # pyzmq, uvicorn, prometheus
    *("get_current_device", "get_current_stream"),  # Triton
    *("ssd_attach", "ssd_detach", "ssd_report", "take_draft_token_ids"),  # vLLM, and its collective_rpc
    *("_verify", "init_cudagraph_manager"),  # vLLM's V2 model runner
}


def test_no_function_is_there_for_tests_alone() -> None:
    """Each function of the package is used, by its name, in the package or in benchmarks/."""
    defined, used = dict[str, Path](), set[str]()
    for path in [*ROOT.rglob("*.py"), *BENCHMARKS.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                # What has a decorator may be called by whoever decorated it.
                if path.is_relative_to(ROOT) and not node.name.startswith("__") and not node.decorator_list:
                    defined[node.name] = path
            elif isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.alias) and path.name == "__init__.py":
                used.add(node.name)  # offered to others
    unused = {name: path for name, path in defined.items() if name not in used | CALLED_BY_OTHERS}
    assert not unused


def test_public_names() -> None:
    for name in ssd.__all__:
        assert getattr(ssd, name) is not None
    with pytest.raises(AttributeError):
        _ = ssd.nothing


def test_no_prints_and_no_environment_reads_in_the_engine() -> None:
    for path in files():
        if path.relative_to(ROOT).parts[0] == "cli":
            continue
        # To hand the environment on to a child is not to read it; and what oneDNN may use, it reads there.
        source = path.read_text().replace("env={**os.environ", "")
        source = source.replace('os.environ.get("ONEDNN_MAX_CPU_ISA"', "")
        # vLLM makes the guard of its routes and gives it nothing: keys are not for arguments.
        source = source.replace("keys_in(os.environ)", "")
        assert not re.search(r"^\s*print\(", source, re.MULTILINE), path
        assert "os.environ" not in source, path
        assert "os.getenv" not in source, path
