"""Small faults for a module's functions, one at a time: a comparison off by its boundary, a statement left out, a branch always
taken, and so on. A mutant is named by its function and the line before and after, so a name outlives moves and re-formatting.

Only bodies of functions and methods are touched: a mutant is then a code object, put into the function that every importer
already holds. (With NUMBA_DISABLE_JIT=1 kernels are plain functions, too.)
"""

from __future__ import annotations
import __future__

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
CHOICES = {"min", "max"}  # each of the arguments alone
WRAPPERS = {"reversed", "abs"}  # the argument alone
LEFT_OUT = (ast.Assign, ast.AugAssign, ast.Expr, ast.Delete, ast.Return, ast.Break, ast.Continue)
SKIPPED_FUNCTIONS = {"check"}  # assertions of the twins


@dataclass(frozen=True)
class Mutant:
    """One fault. function: dotted name within the module."""

    function: str
    name: str
    code: Callable[[], CodeType]


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module's source, in order of the text."""
    out: list[Mutant] = []
    for qualified, function in _functions(ast.parse(source), ""):
        seen: Counter[str] = Counter()
        for statement, change, undo in _sites(function):
            before = _line(statement)
            change()
            after = _line(statement)
            undo()
            name = f"{qualified}: {before} => {after if after != before else '(left out)'}"
            seen[name] += 1
            if seen[name] > 1:
                name += f" #{seen[name]}"
            out.append(Mutant(qualified, name, _compiler(function, change, undo)))
    return out


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, FunctionNode]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode) and child.name not in SKIPPED_FUNCTIONS:
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _compiler(function: FunctionNode, change: Callable[[], None], undo: Callable[[], None]) -> Callable[[], CodeType]:
    def code() -> CodeType:
        change()
        decorators, function.decorator_list = function.decorator_list, []
        module = ast.fix_missing_locations(ast.Module([function], []))
        compiled = compile(module, "<mutant>", "exec", __future__.annotations.compiler_flag)
        function.decorator_list = decorators
        undo()
        return next(c for c in compiled.co_consts if isinstance(c, CodeType) and c.co_name == function.name)

    return code


def _line(statement: ast.stmt) -> str:
    """A statement's first line, without the statements inside it."""
    if isinstance(statement, ast.If | ast.While):
        return f"{'if' if isinstance(statement, ast.If) else 'while'} {ast.unparse(statement.test)}"
    if isinstance(statement, ast.For):
        return f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
    return ast.unparse(statement).split("\n")[0] if not isinstance(statement, ast.Pass) else "pass"


Site = tuple[ast.stmt, Callable[[], None], Callable[[], None]]


def _sites(function: FunctionNode) -> Iterator[Site]:
    for statement, parent, field, at in _statements(function):
        if isinstance(statement, ast.Assert | ast.Raise):
            continue
        if isinstance(statement, LEFT_OUT) and not _is_docstring(statement):
            siblings = getattr(parent, field)
            yield (statement, *_swap_item(siblings, at, ast.Pass()))
        for owner, name, index, node in _expressions(statement):
            for new in _replacements(node):
                if index is None:
                    yield (statement, *_swap_field(owner, name, new))
                else:
                    yield (statement, *_swap_item(getattr(owner, name), index, new))
            if isinstance(node, ast.Compare):
                for i, op in enumerate(node.ops):
                    yield (statement, *_swap_item(node.ops, i, COMPARE[type(op)]()))
            if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
                yield (statement, *_swap_field(node, "op", ARITHMETIC[type(node.op)]()))
        if isinstance(statement, ast.AugAssign) and type(statement.op) in ARITHMETIC:
            yield (statement, *_swap_field(statement, "op", ARITHMETIC[type(statement.op)]()))
        if isinstance(statement, ast.If):
            for value in (True, False):
                yield (statement, *_swap_field(statement, "test", ast.Constant(value)))
        if isinstance(statement, ast.While) and not isinstance(statement.test, ast.Constant):
            yield (statement, *_swap_field(statement, "test", ast.Constant(False)))


def _replacements(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression may become as a whole."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield ast.Constant(0 if node.value == 1 else node.value + 1)
    elif isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in CHOICES and len(node.args) > 1:
            yield from (a for a in node.args if not isinstance(a, ast.Starred))
        elif node.func.id in WRAPPERS and len(node.args) == 1:
            yield node.args[0]


def _statements(node: ast.AST) -> Iterator[tuple[ast.stmt, ast.AST, str, int]]:
    """Statements below a node with the list each is in: (statement, owner, field, position)."""
    for field, value in ast.iter_fields(node):
        for at, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.stmt):
                yield child, node, field, at
            if isinstance(child, ast.stmt | ast.match_case | ast.ExceptHandler):
                yield from _statements(child)


def _expressions(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """Expressions of one statement with where each is: (owner, field, position or None, expression). No annotations."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "args"} and isinstance(node, FunctionNode | ast.AnnAssign | ast.Lambda):
            continue
        for at, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.expr):
                yield node, field, at if isinstance(value, list) else None, child
            if isinstance(child, ast.AST) and not isinstance(child, ast.stmt | ast.match_case | ast.ExceptHandler):
                yield from _expressions(child)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _swap_field(owner: ast.AST, name: str, new: object) -> tuple[Callable[[], None], Callable[[], None]]:
    old = getattr(owner, name)
    return lambda: setattr(owner, name, new), lambda: setattr(owner, name, old)


def _swap_item(items: list, at: int, new: object) -> tuple[Callable[[], None], Callable[[], None]]:
    old = items[at]
    return lambda: items.__setitem__(at, new), lambda: items.__setitem__(at, old)
