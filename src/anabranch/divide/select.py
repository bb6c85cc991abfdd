"""Turn both sides of a branch into a select, for programs whose decision sequences explode.

    mu = a if t < tau else b            becomes            mu = where(t < tau, a, b)

A hundred such lines on a random real are up to 2^100 decision sequences that all meet the same addresses: one path.
When that is noticed, the program's source is rewritten so that a branch on a random real whose two sides only compute
(assign to names, without calling anything that might draw, observe or have an effect) computes both sides and selects.
Every other branch, and every branch on a value that is known, stays what it was.
"""

import ast
import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from anabranch.divide.internals import PathTracer, Undecided

__all__ = ["selecting"]

_PURE_MODULES = ("jax", "numpy", "math")
_PURE_BUILTINS = {"abs", "min", "max", "len", "sum", "round", "float", "int", "bool", "tuple", "list"}
_PURE_NODES = (
    ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Tuple, ast.List,
    ast.Subscript, ast.Slice, ast.Attribute, ast.Call, ast.keyword, ast.Load, ast.operator, ast.unaryop, ast.cmpop,
    ast.boolop,
)  # fmt: skip
_SELECT, _ALL, _ANY, _NOT = "__anabranch_select", "__anabranch_all", "__anabranch_any", "__anabranch_not"


def selecting(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function with its pure branches made selects, or None if there are none or its source is not to be had."""
    if isinstance(function, functools.partial):
        inner = selecting(function.func)
        return None if inner is None else functools.partial(inner, *function.args, **function.keywords)
    # A decorated function has the source of another: what the decorator does would be lost.
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return None
    try:
        lines, first = inspect.getsourcelines(function)
        # Not dedented: the columns are part of the addresses of sites without a name.
        indented = lines[0][:1].isspace()
        tree: Any = ast.parse("if 1:\n" + "".join(lines)).body[0] if indented else ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return None
    rewriter = _Rewriter(function, definition)
    definition.body = [line for statement in definition.body for line in rewriter.statement(statement)]
    if not rewriter.changed:
        return None
    ast.increment_lineno(tree, first - 1 - indented)
    return _rebuilt(function, definition)


def _rebuilt(function: types.FunctionType, definition: ast.FunctionDef) -> Callable[..., Any]:
    """Compile the rewritten definition with the globals, closure and defaults of the original."""
    definition.decorator_list, definition.returns = [], None
    free = function.__code__.co_freevars
    # A function that binds the free variables around it makes them free in the compiled code again.
    arguments = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
    body: list[ast.stmt] = [definition, ast.Return(ast.Name(definition.name, ast.Load()))]
    outer = ast.copy_location(ast.FunctionDef("__anabranch_closure", arguments, body, []), definition)
    module = ast.fix_missing_locations(ast.Module([outer], []))
    space: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), function.__globals__, space)
    made = space["__anabranch_closure"](*[None] * len(free))
    conjunction = functools.partial(_joined, jnp.logical_and, False)
    names = {_SELECT: _select, _ALL: conjunction, _ANY: functools.partial(_joined, jnp.logical_or, True), _NOT: _not}
    cells = dict(zip(free, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in made.__code__.co_freevars)
    code = _renamed(made.__code__, made.__code__.co_qualname, function.__code__.co_qualname)
    space = {**function.__globals__, **names}
    rebuilt = types.FunctionType(code, space, function.__name__, function.__defaults__, closure)
    rebuilt.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(rebuilt, function)
    del rebuilt.__wrapped__  # type: ignore[attr-defined]  # it stands for the original, and must not lead back to it
    rebuilt.__anabranch_code__ = code  # type: ignore[attr-defined]
    return rebuilt


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """The code, and all functions in it, with the qualified names of the original."""
    constants = tuple(_renamed(c, old, new) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_qualname=new + code.co_qualname.removeprefix(old), co_consts=constants)


_IMMUTABLE = (bool, int, float, complex, str, tuple, type(None), np.generic, PathTracer)


class _Rewriter:
    def __init__(self, function: types.FunctionType, definition: ast.FunctionDef) -> None:
        self.scope = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        self.changed = False
        self.foreign = {n for s in ast.walk(definition) if isinstance(s, ast.Global | ast.Nonlocal) for n in s.names}
        arguments = definition.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.bound = {a.arg: 0 for a in every}
        for node in ast.walk(definition):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.bound[node.id] = min(self.bound.get(node.id, node.lineno), node.lineno)

    def statement(self, node: ast.stmt) -> Iterator[ast.stmt]:
        if isinstance(node, ast.If):
            test = self.condition(node.test)
            converted = self._branch(node, test)
            if converted is not None:
                yield from converted
                return
            node.test = test
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(node, name, [line for each in inner for line in self.statement(each)])
        if not isinstance(node, ast.If | ast.While | ast.FunctionDef | ast.ClassDef):
            node = self._expressions(node)
        yield node

    def _expressions(self, node: Any) -> Any:
        """Rewrite the conditional expressions in a statement, from the inside out."""
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, name, self._expression(value))
            elif isinstance(value, list):
                setattr(node, name, [self._expression(v) if isinstance(v, ast.expr) else v for v in value])
        return node

    def _expression(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return node
        if isinstance(node, ast.IfExp) and self.pure(node.body) and self.pure(node.orelse):
            self.changed = True
            sides = [_lambda(self._expression(side)) for side in (node.body, node.orelse)]
            none = ast.Tuple([], ast.Load())
            call = ast.copy_location(_call(_SELECT, self.condition(node.test), *sides, none, none), node.test)
            # Not a call whose value is stored under a name: that is how the addresses of sites are found.
            return _located(ast.Subscript(ast.Tuple([call], ast.Load()), ast.Constant(0), ast.Load()), node)
        self._expressions(node)
        for keyword in getattr(node, "keywords", []):
            keyword.value = self._expression(keyword.value)
        return node

    def _branch(self, node: ast.If, test: ast.expr) -> list[ast.stmt] | None:
        """An if statement as definitions of its two sides and one assignment, where both sides only assign."""
        there, here = self._assigned(node.body), self._assigned(node.orelse)
        if there is None or here is None or not there | here:
            return None
        names = sorted(there | here)
        one_sided = there ^ here
        if self.foreign & set(names) or any(self.bound.get(n, node.lineno) >= node.lineno for n in one_sided):
            return None
        self.changed = True
        labels = [f"__anabranch_{side}_{node.lineno}_{node.col_offset}" for side in ("then", "else")]
        definitions: list[ast.stmt] = []
        for label, body in zip(labels, (node.body, node.orelse), strict=True):
            inner = [line for each in body for line in self.statement(each)]
            returned = ast.Return(ast.Tuple([ast.Name(n, ast.Load()) for n in names], ast.Load()))
            definitions.append(ast.FunctionDef(label, _arguments(names), [*inner, returned], []))
        before = ast.Tuple([_before(name) for name in names], ast.Load())
        changed = {
            n.target.id for n in ast.walk(node) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
        }
        places = ast.Tuple([ast.Constant(i) for i, name in enumerate(names) if name in changed], ast.Load())
        call = _call(_SELECT, test, *[ast.Name(label, ast.Load()) for label in labels], before, places)
        call = ast.copy_location(call, node.test)
        target = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
        return [_located(line, node) for line in [*definitions, ast.Assign([target], call)]]

    def _assigned(self, body: list[ast.stmt]) -> set[str] | None:
        """The names that a side assigns to, or None if it does anything else."""
        names: set[str] = set()
        for statement in body:
            match statement:
                case ast.Pass():
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.pure(value):
                    names.add(name)
                case ast.AugAssign(target=ast.Name(id=name), value=value) if self.pure(value):
                    names.add(name)
                case ast.If(test=test, body=inner, orelse=orelse) if self.pure(test):
                    sides = [self._assigned(inner), self._assigned(orelse)]
                    if None in sides:
                        return None
                    names |= set().union(*(side for side in sides if side))
                case _:
                    return None
        return names

    def condition(self, node: ast.expr) -> ast.expr:
        """A test in which `and`, `or`, `not` and chains of comparisons do not ask for answers one by one."""
        match node:
            case ast.BoolOp(op=op, values=values) if all(map(self.pure, values)):
                parts = [_lambda(self.condition(value)) for value in values]
                return _located(_call(_ALL if isinstance(op, ast.And) else _ANY, *parts), node)
            case ast.UnaryOp(op=ast.Not(), operand=operand) if self.pure(operand):
                return _located(_call(_NOT, self.condition(operand)), node)
            case ast.Compare(left=left, ops=ops, comparators=comparators) if len(ops) > 1 and self.pure(node):
                sides = [left, *comparators]
                pairs = [_lambda(ast.Compare(sides[i], [op], [sides[i + 1]])) for i, op in enumerate(ops)]
                return _located(_call(_ALL, *pairs), node)
        return node

    def pure(self, node: ast.AST) -> bool:
        """Whether an expression only computes."""
        if not isinstance(node, _PURE_NODES):
            return False
        if isinstance(node, ast.Call) and not self._pure_function(node.func):
            return False
        return all(self.pure(child) for child in ast.iter_child_nodes(node))

    def _pure_function(self, node: ast.expr) -> bool:
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        if not path:
            return node.id in _PURE_BUILTINS and node.id not in self.scope and node.id not in self.bound
        root = self.scope.get(node.id)
        return isinstance(root, types.ModuleType) and root.__name__.partition(".")[0] in _PURE_MODULES


def _lambda(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(_arguments([]), body)


def _arguments(names: list[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _before(name: str) -> ast.expr:
    """The value of a name before the branch, or None if it has none yet."""
    local = ast.Call(ast.Name("locals", ast.Load()), [], [])
    return ast.Call(ast.Attribute(local, "get", ast.Load()), [ast.Constant(name)], [])


def _located(node: Any, like: ast.AST) -> Any:
    for child in ast.walk(node):
        if not hasattr(child, "lineno"):
            ast.copy_location(child, like)
    return node


def _select(
    test: Any, then: Callable[..., Any], orelse: Callable[..., Any], before: tuple[Any, ...], augmented: tuple[int, ...]
) -> Any:
    """Both sides, selected by `test`, if it is a random real's and they can be; else the side that is asked for."""
    # Augmented assignment changes lists and arrays in place: such a side may only run if it is taken.
    if _is_open(test) and all(isinstance(before[i], _IMMUTABLE) for i in augmented):
        try:
            with test._trace.undecided():
                sides = then(*before), orelse(*before)
            merged = _merged(test, *sides)
        except (Undecided, Exception):
            merged = None
        if merged is not None:
            return merged[0]
    return then(*before) if test else orelse(*before)


def _is_open(test: Any) -> bool:
    return isinstance(test, PathTracer) and test.known is None and test._trace.is_current() and not test.splits()


def _merged(test: PathTracer, one: Any, other: Any) -> tuple[Any] | None:
    """The two sides as one value, or None if they are not both real numbers, traced, or tuples of such.

    Python's integers and booleans are left alone (an array of integers overflows, and `2**n` means something else), and
    so are lists, dictionaries and arrays, which may be changed later.
    """
    if one is other:
        return (one,)
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        parts = [_merged(test, a, b) for a, b in zip(one, other, strict=True)]
        return None if None in parts else (tuple(part[0] for part in parts if part is not None),)
    if _is_real(one) and _is_real(other) and np.shape(one) == np.shape(other):
        return (jnp.where(test, one, other),)
    return None


def _is_real(value: Any) -> bool:
    return isinstance(value, float | np.floating | PathTracer)


def _joined(operation: Callable[[Any, Any], Any], stop_at: bool, *parts: Callable[[], Any]) -> Any:
    """`and` or `or` over values of which some are not known; those that are known stop it as in Python."""
    joined: Any = None
    for part in parts:
        try:
            with joined._trace.undecided() if joined is not None else contextlib.nullcontext():
                value = part()
        except (Undecided, Exception):
            if joined is None:
                raise
            # Python would not have come here unless what stands before allows it: that is to be decided first.
            if bool(joined) is stop_at:
                return stop_at
            joined, value = None, part()
        if _is_open(value):
            joined = value if joined is None else operation(joined, value)
        elif bool(value) is stop_at:
            return value
    return (not stop_at) if joined is None else joined


def _not(value: Any) -> Any:
    return jnp.logical_not(value) if _is_open(value) else not value
