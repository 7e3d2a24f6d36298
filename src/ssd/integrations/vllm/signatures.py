"""Finds the names and parameters that a package defines, from its sources, without importing them.

Follows imports within the package, and inheritance from the package's classes. Assumes that unknown
decorators do not change a function's parameters. Does not know vLLM.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal

Kind = Literal["value", "function", "method", "staticmethod", "classmethod", "class"]
_NOTHING = Signature()
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Definition:
    kind: Kind
    signature: Signature = _NOTHING
    """As written, with `self`; for a class, its constructor's without `self`. Every default is `...`."""
    is_async: bool = False

    @property
    def when_called(self) -> Signature:
        """The signature without `self` or `cls`."""
        parameters = list(self.signature.parameters.values())
        return Signature(parameters[1:] if self.kind in ("method", "classmethod") else parameters)


def signature_of(words: str) -> Signature:
    """From text such as `(self, a, *, b=...)`."""
    function = ast.parse(f"def f{words}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return _signature(function.args)


def shown(signature: Signature) -> str:
    return str(signature).replace("Ellipsis", "...")


class Package:
    """`name`: the package's name in its own imports."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._files: dict[Path, dict[str, ast.stmt]] = {}
        self._classes: dict[ast.ClassDef, dict[str, ast.stmt]] = {}

    def find(self, file: str, name: str) -> Definition | None:
        """`name`: a function, class or value of that file, or `Class.member`."""
        outer, _, member = name.partition(".")
        place = self._place(self._folder / file, outer)
        if place is None:
            return None
        path, node = place
        if not isinstance(node, ast.ClassDef):
            return None if member else _definition(node, in_class=False)
        if member:
            return self._member(path, node, member)
        written = self._member(path, node, "__init__")
        return Definition("class", written.when_called if written else Signature(list(_fields(node))))

    def _place(self, path: Path, name: str) -> tuple[Path, ast.stmt] | None:
        """The file that defines a name which `path` defines or imports, and the definition."""
        node = self._names(path).get(name)
        if not isinstance(node, ast.ImportFrom):
            return None if node is None else (path, node)
        source = self._source(path, node)
        original = next(each.name for each in node.names if (each.asname or each.name) == name)
        return None if source is None else self._place(source, original)

    def _source(self, path: Path, node: ast.ImportFrom) -> Path | None:
        """The imported file; None if it is outside the package."""
        parts = (node.module or "").split(".")
        if node.level:
            module = path.parents[node.level - 1].joinpath(*parts)
        elif parts[0] == self._name:
            module = self._folder.joinpath(*parts[1:])
        else:
            return None
        return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")

    def _member(self, path: Path, node: ast.ClassDef, name: str) -> Definition | None:
        if node not in self._classes:
            self._classes[node] = _members(node)
        if name in self._classes[node]:
            return _definition(self._classes[node][name], in_class=True)
        for base in node.bases:
            place = self._place(path, base.id) if isinstance(base, ast.Name) else None
            if place is not None and isinstance(place[1], ast.ClassDef):
                inherited = self._member(place[0], place[1], name)
                if inherited is not None:
                    return inherited
        return None

    def _names(self, path: Path) -> dict[str, ast.stmt]:
        if path not in self._files:
            self._files[path] = _names_of(path)
        return self._files[path]


def _names_of(path: Path) -> dict[str, ast.stmt]:
    """Names that a file defines or imports; the last definition of a name counts, as in Python."""
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {name: node for node in _statements(tree.body) for name in _defined(node)}


def _statements(body: list[Any]) -> Iterator[Any]:
    """All statements, including those inside `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            for part in ("body", "handlers", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if not {"overload", "setter", "deleter"} & set(_decorators(node)):
                yield name
        case ast.ClassDef(name=name):
            yield name
        case ast.ImportFrom(names=names):
            yield from (each.asname or each.name for each in names)
        case ast.Assign(targets=targets):
            yield from (each.id for each in _parts(targets) if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    """Names that a class defines in its body, and that its methods assign to `self`."""
    assigned: dict[str, ast.stmt] = {}
    for method in (each for each in _statements(node.body) if isinstance(each, _FUNCTIONS)):
        for inner in ast.walk(method):
            if isinstance(inner, ast.Assign | ast.AnnAssign):
                targets: Sequence[ast.expr] = (
                    inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                )
                for target in _parts(targets):
                    if isinstance(target, ast.Attribute) and _is_self(target.value):
                        assigned[target.attr] = inner
    return {**assigned, **{name: each for each in _statements(node.body) for name in _defined(each)}}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _parts(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        yield from _parts(target.elts) if isinstance(target, ast.Tuple) else [target]


def _definition(node: ast.stmt, *, in_class: bool) -> Definition:
    if not isinstance(node, _FUNCTIONS):
        return Definition("value")
    decorators = _decorators(node)
    if any(each.endswith("property") for each in decorators):
        return Definition("value")
    kind: Kind = "method" if in_class else "function"
    if "staticmethod" in decorators:
        kind = "staticmethod"
    elif "classmethod" in decorators:
        kind = "classmethod"
    return Definition(kind, _signature(node.args), isinstance(node, ast.AsyncFunctionDef))


def _decorators(node: ast.stmt) -> list[str]:
    """Unqualified names: `cached_property` for `@functools.cached_property`, `wrap` for `@wrap(1)`."""
    decorators = getattr(node, "decorator_list", [])
    return [ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in decorators]


def _signature(arguments: ast.arguments) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    parameters = []
    for index, each in enumerate(positional):
        is_only = index < len(arguments.posonlyargs)
        kind = Parameter.POSITIONAL_ONLY if is_only else Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(_parameter(each.arg, kind, has_default=index >= required))
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(_parameter(each.arg, Parameter.KEYWORD_ONLY, has_default=default is not None))
    if arguments.kwarg:
        parameters.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)


def _fields(node: ast.ClassDef) -> Iterator[Parameter]:
    """The constructor's parameters of a dataclass, which must be called with keywords."""
    if "dataclass" not in _decorators(node):
        return
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                words = ast.unparse(value) if value else ""
                is_required = not words or (words.startswith("field(") and "default" not in words)
                yield _parameter(name, Parameter.KEYWORD_ONLY, has_default=not is_required)


def _parameter(name: str, kind: Any, *, has_default: bool) -> Parameter:
    return Parameter(name, kind, default=... if has_default else Parameter.empty)
