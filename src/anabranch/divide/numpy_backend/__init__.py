"""Evaluate recorded JAX primitives over a batch of executions, on the host, with NumPy.

The programs of interest do little arithmetic in each primitive but run through many different ones, so compiling them
with XLA would cost far more than evaluating them. Every array here has one extra leading axis, the batch: its length is
the number of executions n, or 1 for a value that is the same in all of them. NumPy's broadcasting then combines the
two. Results have the values and the dtypes that JAX would give with 64-bit types enabled.

A primitive is evaluated by its rule, ``rule(params, *args)``, found by name in `RULES`; one without a rule is given to
JAX. Arrays of random keys cannot be NumPy arrays and stay JAX arrays; whatever touches them goes to JAX too.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.extend import core

from anabranch.divide.dispatch import one_call
from anabranch.divide.numpy_backend import primitives, shapes
from anabranch.divide.numpy_backend.elementwise import Array, batch_size, spread
from anabranch.divide.numpy_backend.primitives import CALL_BODIES, Condition, Params, Rule
from anabranch.limits import checkpoint

__all__ = ["RULES", "Rule", "apply", "evaluate_jaxpr", "is_key", "prepared", "supports", "supports_all"]

AnyJaxpr = core.ClosedJaxpr | core.Jaxpr


def apply(primitive: core.Primitive, params: Params, args: Sequence[Array]) -> list[Array]:
    """Evaluate one primitive over the batch; a list of its outputs, even when there is only one."""
    rule = _rule(primitive, params)
    # Only keys are JAX arrays. Every primitive asks for them: a loop or generator would take longer.
    has_keys = not _NUMPY_ONLY.issuperset(map(type, args))
    if rule is None or (has_keys and primitive.name not in CALL_BODIES):
        return _apply_with_jax(primitive, params, args)
    with np.errstate(all="ignore"):
        result = rule(params, *args)
    return list(result) if primitive.multiple_results else [result]


def evaluate_jaxpr(jaxpr: core.ClosedJaxpr, args: Sequence[Array]) -> list[Array]:
    """Evaluate a whole jaxpr over the batch."""
    with np.errstate(all="ignore"):
        return _run(jaxpr, args)


def prepared(
    jaxpr: core.ClosedJaxpr, known: Sequence[Array], results: int | None = None
) -> Callable[[Sequence[Array]], list[Array]]:
    """A jaxpr as a function of its first arguments, to be called again and again: what depends on the known ones alone,
    which come last, is computed once. With `results`, only so many of its results, the first, are computed."""
    with np.errstate(all="ignore"):
        program = _prepare(jaxpr, known, results)

    def evaluate(args: Sequence[Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return _follow(program, args)

    return evaluate


def supports(primitive: core.Primitive, params: Params) -> bool:
    """Whether the primitive, and every one in jaxprs inside it, has a rule, so that XLA will not be needed."""
    return _rule(primitive, params) is not None and all(map(supports_all, primitives.jaxprs_in(params)))


_supported: WeakKeyDictionary[core.Jaxpr, bool] = WeakKeyDictionary()


def supports_all(jaxpr: core.Jaxpr) -> bool:
    """Whether every primitive in a jaxpr has a rule."""
    known = _supported.get(jaxpr)
    if known is None:
        known = _supported[jaxpr] = all(supports(eqn.primitive, eqn.params) for eqn in jaxpr.eqns)
    return known


def _rule(primitive: core.Primitive, params: Params) -> Rule | None:
    condition = _CONDITIONS.get(primitive.name)
    return RULES.get(primitive.name) if condition is None or condition(params) else None


def is_key(value: Any) -> bool:
    """Whether an array, or the type of one, has for elements the keys of `jax.random`, which have no NumPy form."""
    return hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


_NUMPY_ONLY = frozenset([np.ndarray])


def _apply_with_jax(primitive: core.Primitive, params: Params, args: Sequence[Any]) -> list[Any]:
    bind = primitives.binder(primitive, params)
    batch = batch_size(args)
    with jax.enable_x64(True), jax.ensure_compile_time_eval(), one_call():
        if batch == 1:
            outputs = bind(*[a[0] for a in args])
        else:
            # The last row is repeated, so that batches of many sizes share one compiled program.
            row = np.minimum(np.arange(1 << (batch - 1).bit_length()), batch - 1)
            axes = [None if a.shape[0] == 1 else 0 for a in args]
            rows = [a[0] if axis is None else a[row] for a, axis in zip(args, axes, strict=True)]
            outputs = jax.vmap(bind, in_axes=axes)(*rows)
        outputs = [x if is_key(x) else np.asarray(x) for x in (outputs if primitive.multiple_results else [outputs])]
        return [output[None] if batch == 1 else output[:batch] for output in outputs]


def _jax_rule(primitive: core.Primitive) -> Rule:
    def rule(params: Params, *args: Array) -> Any:
        outputs = _apply_with_jax(primitive, params, args)
        return outputs if primitive.multiple_results else outputs[0]

    return rule


class _Step(NamedTuple):
    rule: Rule
    params: Params
    fetch: Callable[[list], Sequence]  # picks the arguments from the values
    target: int | list[int]  # where the output, or each of several, goes
    dead: Sequence[int] = ()  # values that no later step reads: their memory, still in the cache, is used again


class _Program(NamedTuple):
    """A jaxpr as a flat list of steps that read and write numbered slots."""

    values: list[Any]  # of constants; None where an argument or a step's output goes
    steps: list[_Step]
    outputs: list[int]


def _run(jaxpr: AnyJaxpr, args: Sequence[Any]) -> list[Any]:
    checkpoint()  # a loop comes here once for each of its iterations
    program = _programs.get(jaxpr)
    if program is None:
        program = _programs[jaxpr] = _prepare(jaxpr)
    return _follow(program, args)


def _follow(program: _Program, args: Sequence[Any]) -> list[Any]:
    values = program.values.copy()
    values[: len(args)] = args
    for rule, params, fetch, target, dead in program.steps:
        result = rule(params, *fetch(values))
        if isinstance(target, int):
            values[target] = result
        else:
            for slot, output in zip(target, result, strict=True):
                values[slot] = output
        result = None
        for slot in dead:
            values[slot] = None
    return [values[slot] for slot in program.outputs]


_programs: WeakKeyDictionary[AnyJaxpr, _Program] = WeakKeyDictionary()


def _fetcher(slots: Sequence[int]) -> Callable[[list], Sequence]:
    """A function from the values to the sequence of those in the slots; itemgetter alone gives one value bare."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0, 0))


class _Builder:
    """Flattens nested calls into one list of steps, and does the work that no argument influences."""

    def __init__(self, argument_count: int, known: Sequence[Array] = ()) -> None:
        self.values: list[Any] = [*[None] * (argument_count - len(known)), *known]
        self.steps: list[tuple[_Step, Sequence[int], bool]] = []  # with the slots it reads, and if it has effects

    def new_slot(self, value: Any = None) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def read(self, slots: dict[core.Var, int], atom: core.Var | core.Literal) -> int:
        if isinstance(atom, core.Literal):
            aval: Any = atom.aval
            return self.new_slot(np.asarray(atom.val, dtype=aval.dtype)[None])
        return slots[atom]

    def inline(self, jaxpr: AnyJaxpr, arguments: Sequence[int]) -> list[int]:
        """Add the steps of a jaxpr whose arguments are in the given slots; the slots of its outputs."""
        consts = getattr(jaxpr, "consts", ())
        body = getattr(jaxpr, "jaxpr", jaxpr)
        slots = dict(zip(body.invars, arguments, strict=True))
        for variable, const in zip(body.constvars, consts, strict=True):
            slots[variable] = self.new_slot((const if is_key(variable.aval) else np.asarray(const))[None])
        for eqn in body.eqns:
            inputs = [self.read(slots, atom) for atom in eqn.invars]
            slots.update(zip(eqn.outvars, self.add(eqn, inputs), strict=True))
        return [self.read(slots, atom) for atom in body.outvars]

    def add(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> list[int]:
        """Add what computes an equation's outputs from the given slots; the slots of the outputs."""
        name, params = eqn.primitive.name, eqn.params
        if name in CALL_BODIES:
            return self.inline(params[CALL_BODIES[name]], inputs)
        if name == primitives.COND and self.values[inputs[0]] is not None:
            return self.inline(primitives.branches(params)[int(self.values[inputs[0]][0])], inputs[1:])
        constants = [self.values[slot] for slot in inputs]
        same = primitives.is_an_input(name, constants)
        if same is not None and _are_alike(eqn.invars[same], eqn.outvars[0]):
            return [inputs[same]]
        rule = _rule(eqn.primitive, params)
        if rule is None or any(is_key(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
            rule = _jax_rule(eqn.primitive)
        elif name not in _CONTROL_FLOW and all(value is not None for value in constants):
            result = rule(params, *constants)
            return [self.new_slot(output) for output in (result if eqn.primitive.multiple_results else [result])]
        outputs = [self.new_slot() for _ in eqn.outvars]
        target = outputs if eqn.primitive.multiple_results else outputs[0]
        self.steps.append((_Step(rule, params, _fetcher(inputs), target), inputs, bool(eqn.effects)))
        return outputs

    def needed_steps(self, outputs: Sequence[int]) -> list[_Step]:
        needed, kept = set(outputs), []
        for step, inputs, has_effects in reversed(self.steps):
            targets = step.target if isinstance(step.target, list) else [step.target]
            if has_effects or not needed.isdisjoint(targets):
                dead = [slot for slot in {*inputs, *targets} - needed if self.values[slot] is None]
                kept.append(step._replace(dead=tuple(dead)))
                needed.update(inputs)
        self.values = [value if slot in needed else None for slot, value in enumerate(self.values)]
        return kept[::-1]


def _are_alike(one: Any, other: Any) -> bool:
    """Whether two atoms have the same shape and dtype."""
    return bool(one.aval.shape == other.aval.shape and one.aval.dtype == other.aval.dtype)


def _prepare(jaxpr: AnyJaxpr, known: Sequence[Array] = (), results: int | None = None) -> _Program:
    argument_count = len(getattr(jaxpr, "jaxpr", jaxpr).invars)
    builder = _Builder(argument_count, known)
    outputs = builder.inline(jaxpr, range(argument_count))[:results]
    steps = builder.needed_steps(outputs)
    return _Program(builder.values, steps, outputs)


def _rows(arrays: Sequence[Array], rows: Array) -> list[Array]:
    """Some executions of a batch; what is the same in all executions stays so."""
    return [a if a.shape[0] == 1 else a[rows] for a in arrays]


def _cond(params: Params, index: Array, *args: Array) -> list[Array]:
    branches = primitives.branches(params)
    taken = np.unique(index)
    if len(taken) == 1:
        return _run(branches[int(taken[0])], args)
    results = [np.empty((len(index), *aval.shape), aval.dtype) for aval in branches[0].out_avals]
    for branch in taken:
        rows = np.flatnonzero(index == branch)
        for result, output in zip(results, _run(branches[int(branch)], _rows(args, rows)), strict=True):
            result[rows] = output
    return results


def _while(params: Params, *args: Array) -> list[Array]:
    """Loop until no execution goes on; those that stop are set aside, so that each does only its own iterations."""
    condition, body, cond_consts, body_consts, carry = primitives.while_parts(params, args)
    rows = None  # the executions still running; None until some stop before others
    results: list[Array] = []
    while True:
        (going,) = _run(condition, cond_consts + carry)
        running = going.reshape(len(going), -1).any(axis=1)
        if not running.any():
            break
        if not running.all():
            if rows is None:
                rows = np.arange(len(running))
                results = [np.empty((len(running), *a.shape[1:]), a.dtype) for a in carry]
            for result, value in zip(results, carry, strict=True):
                result[rows[~running]] = spread(value, len(running))[~running]
            rows, going = rows[running], going[running]
            cond_consts, body_consts, carry = (_rows(part, running) for part in (cond_consts, body_consts, carry))
        carry = _advance(going, carry, _run(body, body_consts + carry))
    if rows is None:
        return carry
    for result, value in zip(results, carry, strict=True):
        result[rows] = value
    return results


def _advance(going: Array, carry: list[Array], following: list[Array]) -> list[Array]:
    """The next carry of a while loop. One that JAX itself vectorised has an array of predicates, each for a part."""
    if going.ndim == 1:
        return following
    return [
        np.where(going.reshape(going.shape + (1,) * (new.ndim - going.ndim)), new, old)
        for old, new in zip(carry, following, strict=True)
    ]


def _scan(params: Params, *args: Array) -> list[Array]:
    jaxpr = primitives.scan_body(params)
    consts, carry, inputs, positions = primitives.scan_parts(params, args)
    count = len(carry)
    if not positions:
        return carry + [np.empty((1, 0, *aval.shape), aval.dtype) for aval in jaxpr.out_avals[count:]]
    collected: list[Any] = [None] * len(positions)
    for i in positions:
        outputs = _run(jaxpr, [*consts, *carry, *[a[:, i] for a in inputs]])
        carry, collected[i] = outputs[:count], outputs[count:]
    return carry + [shapes.joined(np.stack, values, 0) for values in zip(*collected, strict=True)]


RULES: dict[str, Rule] = {
    **primitives.RULES,
    **{name: lambda params, *args, body=body: _run(params[body], args) for name, body in CALL_BODIES.items()},
    primitives.COND: _cond,
    primitives.LINEAR_SOLVE: lambda params, *args: _run(*primitives.linear_solve_parts(params, args)),
    primitives.SCAN: _scan,
    primitives.WHILE: _while,
}
_CONDITIONS: dict[str, Condition] = {
    **primitives.CONDITIONS,
    primitives.COND: lambda params: not any(map(is_key, primitives.branches(params)[0].out_avals)),
    primitives.SCAN: lambda params: not any(map(is_key, primitives.scan_body(params).out_avals)),
}
_CONTROL_FLOW = {primitives.COND, primitives.LINEAR_SOLVE, primitives.SCAN, primitives.WHILE}
