"""Single changes of the code, drawn at random from a seed: would a test notice them?

Knows Python's syntax trees. A change replaces one node: a comparison, an operator, a number, a condition, or
leaves a statement out. Texts, annotations, log lines and error messages are left alone, since no test should
depend on them. Does not know which tests there are.
"""

import ast
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitXor: ast.BitAnd,
}  # fmt: skip
_SPEAKERS = ("logger", "logging", "warnings")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one file."""

    path: str
    line: int
    before: str
    after: str
    source: str
    """The whole file with the change. Comments are lost."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before}  →  {self.after}"


def draw(files: Sequence[Path], count: int, seed: int, root: Path) -> list[Change]:
    """`count` different changes of these files, each place as likely as any other."""
    places = [(path, number) for path in sorted(files) for number in range(len(_changes(path.read_text())))]
    chosen = random.Random(seed).sample(places, min(count, len(places)))
    return [_change(path, number, root) for path, number in chosen]


def _change(path: Path, number: int, root: Path) -> Change:
    tree = ast.parse(path.read_text())
    statement, apply = _changes_of(tree)[number]
    before = _shown(statement)
    after = apply()
    return Change(
        str(path.relative_to(root)),
        statement.lineno,
        before,
        after if after is not None else _shown(statement),
        ast.unparse(ast.fix_missing_locations(tree)),
    )


def _shown(statement: ast.stmt) -> str:
    """Its first line."""
    return ast.unparse(statement).splitlines()[0]


_Apply = Callable[[], str | None]
"""Makes the change in the tree; returns a text to show in place of the changed statement, or None."""


def _changes(source: str) -> list[tuple[ast.stmt, _Apply]]:
    return _changes_of(ast.parse(source))


def _changes_of(tree: ast.Module) -> list[tuple[ast.stmt, _Apply]]:
    """Every possible change of a tree, in a fixed order, with the statement that it is in."""
    found: list[tuple[ast.stmt, _Apply]] = []
    for parent in ast.walk(tree):
        if not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for body in _bodies(parent):
            for place, statement in enumerate(body):
                if _is_silent(statement):
                    continue
                found += [(statement, each) for each in _of_statement(body, place)]
                found += [(statement, each) for node in _expressions(statement) for each in _of_node(node)]
    return found


def _bodies(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of a function, without those of functions inside it, which are found by themselves."""
    for name in ("body", "orelse", "finalbody"):
        if body := getattr(function, name, None):
            yield body
            for statement in body:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _bodies(statement)
    for inner in (*getattr(function, "handlers", ()), *getattr(function, "cases", ())):
        yield from _bodies(inner)


def _is_silent(statement: ast.stmt) -> bool:
    """Docstrings, log lines, errors that are raised, imports and definitions."""
    if isinstance(
        statement, ast.Raise | ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Pass
    ):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return isinstance(value.func.value, ast.Name) and value.func.value.id in _SPEAKERS
    return isinstance(value, ast.Constant)


def _of_statement(body: list[ast.stmt], place: int) -> Iterator[_Apply]:
    """To leave out a statement that only has an effect; to take the other way at a condition."""
    statement = body[place]
    if isinstance(statement, ast.Expr | ast.AugAssign | ast.Delete | ast.Continue | ast.Break):

        def leave_out() -> str:
            body[place] = ast.Pass()
            return "(left out)"

        yield leave_out
    if isinstance(statement, ast.If | ast.While):

        def negate() -> None:
            statement.test = ast.UnaryOp(ast.Not(), statement.test)

        yield negate


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, without those of the blocks below it."""
    for name, value in ast.iter_fields(statement):
        if name in ("body", "orelse", "finalbody", "handlers", "cases", "annotation", "returns"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr | ast.withitem):
                yield from _below(each)


def _below(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr):
        return  # A message.
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _below(child)


def _of_node(node: ast.expr) -> Iterator[_Apply]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        yield _setter(node, "ops", [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield _setter(node, "op", _OPERATORS[type(node.op)]())
    if isinstance(node, ast.BoolOp):
        yield _setter(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield _replacer(node, node.operand)
    if isinstance(node, ast.IfExp):
        yield _setter(node, "test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _setter(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield _setter(node, "value", node.value + 1)


def _setter(node: ast.expr, field: str, value: object) -> _Apply:
    return lambda: setattr(node, field, value)


def _replacer(node: ast.expr, other: ast.expr) -> _Apply:
    """A node cannot take another's place without its parent: it takes on the other's class and fields."""

    def replace() -> None:
        taken = copy.deepcopy(other)
        node.__class__ = taken.__class__
        node.__dict__.clear()
        node.__dict__.update(taken.__dict__)

    return replace
