"""Divide a program: find its paths and their prior probabilities (paper, sections 4.1 and 6.2)."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from anabranch import addresses, errors, settings
from anabranch.cores import one_blas_thread
from anabranch.divide.batch import Batch, Constraints, stable_hash
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.executions import Executions
from anabranch.divide.families import Asked, Leaf, leaf_at, leaf_of
from anabranch.divide.path import Path
from anabranch.divide.recording import Decision, Program, copied, mapped
from anabranch.divide.remedies import Departure, remedy_of_branch
from anabranch.divide.replay import check_same, rerun
from anabranch.divide.select import selecting
from anabranch.divide.sequences import signature_of
from anabranch.divide.show import draw_tree
from anabranch.divide.source_location import user_location
from anabranch.divide.tree import Tree
from anabranch.divide.unmet import unmet_in_words
from anabranch.limits import LimitReached

__all__ = ["Division", "Restarted", "divide", "find_paths"]

logger = logging.getLogger("anabranch")


SELECT_ABOVE, INTERPRET_ABOVE = 8, 64
"""Decision sequences of one path, above which its branches become selects if they only assign, else are interpreted."""


class Restarted(Exception):
    """The program was rewritten, with selects or for the interpreter: executions of its old form are void."""


def find_paths(
    program: Callable[..., Any],
    *args: Any,
    executions: int = 1000,
    seed: int = 0,
    split: Mapping[str, bool] | Iterable[str] = (),
    max_sites: int = 10_000,
    **kwargs: Any,
) -> Division:
    """Divide a program into its paths, as met by a number of executions from the prior.

    Args:
        program: an ordinary Python function over NumPyro distributions.
        args: its arguments.
        executions: how many times to execute it from the prior, T_0 in the paper.
        seed: where every random choice comes from.
        split: discrete sites to fix to their value in each path, by name, although no decision depends on them; or a
            mapping in which False keeps a site a variable of the path although one does.
        max_sites: paths with more sites are not followed; their prior mass is `prior_mass_truncated`.
        kwargs: keyword arguments of the program.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def geometric():
        ...     n = 0
        ...     while ab.sample(f"again{n}", dist.Bernoulli(0.5)):
        ...         n += 1
        ...     return n
        >>> division = ab.find_paths(geometric, executions=100)
        >>> division.paths[0].description, division.paths[0].prior_probability
        ('again0 = 0', 0.5)
    """
    executions, seed = settings.whole(1)("executions", executions), settings.seed()("seed", seed)
    division = divide(program, args, kwargs, split, max_sites)
    with one_blas_thread():
        division.explore(executions, seed)
    division.check_some_end()
    return division


def divide(
    program: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    split: Mapping[str, bool] | Iterable[str] = (),
    max_sites: int = 10_000,
) -> Division:
    """A division without any paths yet; the arguments are those of `find_paths`."""
    if addresses.is_running():
        raise errors.UnsupportedStatement(
            "infer and find_paths cannot be called inside a program that is being divided itself",
            where=user_location(),
            remedy="Make the statements of the inner program part of the outer one, or run the inner one before, and "
            "give its answer to the outer one as an argument",
        )
    if not callable(program):
        raise errors.OutsideProgram(
            f"program must be a function; got {type(program).__name__}",
            where=user_location(),
            remedy="Pass the function itself and its arguments, as in ab.infer(program, data): ab.infer(program(data)) "
            "runs it at once",
        )
    max_sites, choice = settings.whole(1)("max_sites", max_sites), settings.site_choice()("split", split)
    # Copies of the data: the user may go on to change it.
    return Division(Program(program, mapped(args, copied), mapped(kwargs, copied), choice, max_sites))


class Division:
    """A program with the paths found so far, the tree of decisions, and the prior mass found.

    Made by `find_paths`; `explore` and `route` extend it. Iterating gives the paths.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> division = ab.find_paths(programs.branching, 2.0)
        >>> len(division), division.prior_mass_found
        (2, 1.0)
    """

    def __init__(self, program: Program) -> None:
        self._said_unmet: set[str] = set()
        self._solving = False  # whether the executions under way were led to an answer that none has met
        self._sent: list[tuple[int, int]] = []  # explorations that counted: how many executions, and their seed
        self._start(program)

    def _start(self, program: Program) -> None:
        self.program = program
        self._paths: dict[Any, Path] = {}
        self._shapes: dict[str, set[tuple[int, ...]]] = {}  # of the sites of all paths, by name
        self._tree = Tree(program, self._found)
        self._may_select = not program.selecting
        self._caught_up = 0

    def _rewrite(self, last: Decision | None) -> None:
        """Rewrite a program with too many decision sequences: with selects if it can be, else for the interpreter."""
        program, at = self.program, "?" if last is None else last.where
        if self._may_select:
            self._may_select = False
            function = selecting(program.function)
            if function is None:
                return
            logger.info("%s: branches on random reals that only assign, as at %s, are run as selects", program.name, at)
            self._start(replace(program, function=function, selecting=True))
        else:
            asked, line = ("", "") if last is None else last.source
            self._start(replace(program, interpreted=True))
            self._tree.departure = Departure(
                at,
                f"branches on a random real, which gives more than {INTERPRET_ABOVE} decision sequences with the same "
                "sites",
                remedy_of_branch(asked, line),
            )
        raise Restarted

    @property
    def paths(self) -> list[Path]:
        """The paths found so far, the most probable a priori first."""
        return sorted(self._paths.values(), key=lambda path: -path.log_prior_probability)

    @property
    def by_signature(self) -> Mapping[Any, Path]:
        """The paths found so far by signature, in the order in which they were found."""
        return MappingProxyType(self._paths)

    @property
    def where(self) -> str | None:
        """The line of the program's definition: `model.py:12`; None where it has no source."""
        code = getattr(self.program.function, "__code__", None)
        return None if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"

    @property
    def python_runs(self) -> int:
        """How often executions made the program's Python run: about once per path, not once per execution.

        Runs that only check that the program repeats itself are not counted.
        """
        return self._tree.runs

    @property
    def interpreted_at(self) -> Departure | None:
        """Where the program left JAX, and what to write there instead; None if it did not so far."""
        return self._tree.departure

    @property
    def seconds_per_run(self) -> float | None:
        """How long the interpreter takes for one execution, measured over those so far; None if there was none."""
        return self.program.pace.seconds_per_run

    @property
    def prior_mass_found(self) -> float:
        """The prior probability of the paths found; the rest is on paths that were not."""
        return min(1.0, float(sum(path.prior_probability for path in self._paths.values())))

    @property
    def root(self) -> DecisionNode:
        """The root of the tree of decisions."""
        return self._tree.root

    @property
    def unmet(self) -> list[str]:
        """The conditions of which no execution has met one side, and values that none has met, as sentences.

        Example:
            >>> import anabranch as ab, numpyro.distributions as dist
            >>> def rare():
            ...     if ab.sample("x", dist.Normal(0.0, 1.0)) > 9:
            ...         ab.sample("y", dist.Normal(0.0, 1.0))
            >>> [sentence.split(") ")[-1] for sentence in ab.find_paths(rare).unmet]
            ['was never true']
        """
        return unmet_in_words(self.root)

    @property
    def unmet_split(self) -> set[str]:
        """The sites that `split` names and no execution has met so far."""
        return set(self.program.split.keys() - self._shapes.keys())

    @property
    def prior_mass_truncated(self) -> float:
        """The prior probability of executions with more than `max_sites` sites."""
        return float(sum(math.exp(node.log_probability()) for node in self._tree.root.childless() if node.truncated))

    def explore(self, executions: int, seed: int | None = None) -> list[Executions]:
        """Execute the program from the prior, and keep the paths that this finds.

        The result groups the executions by where they went: several groups may have the same path. Without a seed, one
        is taken that follows from the first and from how often this was done; those of a former seed are not counted.
        """
        if seed is None:  # one from a hash: the next number would give the executions of a run with the next seed
            seed = stable_hash("explore", self._sent[0][1], len(self._sent)) >> 2 if self._sent else 0
        fresh = all(seed != sent for _, sent in self._sent)
        try:
            return self.send(Constraints(), executions, seed, count=fresh)
        finally:
            # Also where a limit ended it: those that came to an end by then have counted.
            if fresh:
                self._sent.append((executions, seed))
                self._caught_up += 1

    def route(
        self, values: Mapping[str, Any], seed: int = 0, present: Mapping[str, Any] | None = None
    ) -> list[Executions]:
        """Execute the program with these values, by address, each an array with one row per execution.

        Sites without a value, or for which `present` says no, are drawn from the prior. New paths are kept.
        """
        arrays = {name: np.asarray(value) for name, value in values.items()}
        scalars = [name for name, value in arrays.items() if value.ndim == 0]
        if scalars:
            raise ValueError(f"values: site {scalars[0]!r} must be an array with one row per execution; got a scalar")
        sizes = sorted({len(value) for value in arrays.values()})
        if len(sizes) != 1:
            raise ValueError(f"values must have one row per execution, the same number for each site; got {sizes}")
        masks = {name: np.asarray(mask, bool) for name, mask in (present or {}).items()}
        self._check_shapes(arrays)
        return self.send(Constraints(arrays, masks), sizes.pop(), seed)

    def send(
        self, constraints: Constraints, executions: int, seed: int, count: bool = False, solving: bool = False
    ) -> list[Executions]:
        """Execute the program with constraints on any sites that it meets. New paths are kept.

        Without constraints, `count` says that the executions estimate the prior probabilities of the paths. `solving`
        says that they were led to an answer that none has met: a decision sequence that they find is a path apart.
        """
        try:
            # After a restart, the executions that were counted in the old form are to be counted in the new one.
            while self._caught_up < len(self._sent):
                self._tree.send(*self._sent[self._caught_up])
                self._caught_up += 1
            self._solving = solving
            arrived = self._tree.send(executions, seed, constraints, count)
        except Restarted:
            return self.send(constraints, executions, seed, count, solving)
        finally:
            self._solving = False
        self._check_observations()
        self._check_split()
        return arrived

    def path_with(self, values: Mapping[str, np.ndarray]) -> Path | None:
        """The known path that an execution takes whose sites have these values; None if it is not known, or not
        determined by them."""
        node: DecisionNode | None = self._tree.root
        while node is not None and node.question is not None:
            value = None if node.asked is None else values.get(node.asked[0])
            if value is None or node.asked is None or value.shape != node.asked[1]:
                return None
            node = node.children.get(value.tobytes())
        return None if node is None else node.path

    def _check_shapes(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, value in arrays.items():
            # Another path may have the site in another size, but not with another number of axes.
            shapes = self._shapes.get(name)
            if shapes and value.ndim - 1 not in map(len, shapes):
                expected = " or ".join(f"(n, {', '.join(map(str, shape))})" for shape in sorted(shapes))
                raise ValueError(f"values: site {name!r} must have shape {expected}; got {value.shape}")

    def sequential(self) -> Division:
        """A division of the same program, whose executions can stop at an observation (see `advance`)."""
        division = Division(replace(self.program, sequential=True))
        for executions, seed in self._sent:  # from which the prior probabilities of its paths are known
            with contextlib.suppress(LimitReached):  # what it would have found is found by those who go on with it
                division.explore(executions, seed)
        return division

    def begin(self, n: int, seed: int, constraints: Constraints | None = None) -> Executions:
        """Executions at the root of the tree."""
        return Executions(self._tree.root, Batch(seed, constraints or Constraints(), np.arange(n)))

    def advance(self, groups: Iterable[Executions], until: int) -> list[Executions]:
        """Send executions on from where they are: to a node from which `until` observations can be weighed, or to
        their end. `Restarted` says that the program took another form, and that they must begin again."""
        return self._tree.advance(groups, until=until)

    def _found(self, leaf: DecisionNode) -> None:
        recording = leaf.recording
        assert recording is not None
        if not recording.sites:
            raise errors.NoRandomVariables(
                f"{self.program.name} draws no random variable",
                remedy="Add a sample statement, or check that the sites are not hidden by a handler such as block",
            )
        if not self._paths and not recording.concrete:
            # The first path is run again, to find a program that draws random numbers outside its sites.
            check_same(recording, rerun(self.program, recording.choices))
        apart = self._solving and not recording.concrete and any(d.node is not None for d in recording.decisions)
        signature = signature_of(recording.signature, recording.decisions) if apart else recording.signature
        path = self._paths.get(signature)
        if path is None:
            leaf.path = self._paths[signature] = Path(self.program, [recording], [leaf], apart)
            for site in recording.sites:
                self._shapes.setdefault(site.name, set()).add(site.shape)
        else:
            leaf.path = path
            path.add(leaf)
            limit = SELECT_ABOVE if self._may_select else INTERPRET_ABOVE
            if path.sequences > limit and not path.interpreted:
                self._rewrite(path.last_decision)

    def check_some_end(self) -> None:
        """Raise `EndlessProgram` if every execution so far had more than `max_sites` sites."""
        self._tree.check_some_end()

    def _check_observations(self) -> None:
        """Raise the error of an observation that is outside its support on every path."""
        paths = self._paths.values()
        if paths and all(path.fault for path in paths):
            raise next(iter(paths)).fault  # type: ignore[misc]

    def _check_split(self) -> None:
        if not self.program.split.keys() - self._said_unmet:
            return
        for name in self.unmet_split - self._said_unmet:
            self._said_unmet.add(name)
            logger.warning("%s: split names the site %r, which no execution has met", self.program.name, name)

    def __iter__(self) -> Iterator[Path]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self._paths)

    def tree(self, limit: int = 40) -> str:
        """The tree of decisions as text, with its `limit` most probable ends and their prior probabilities.

        Paths that differ only in answers after which the program goes on alike are a family, and one line if they are
        more than eight: `z0 … z11: any subset; 3,012 of 4,096 paths found`. The second number is that of all
        combinations of the answers met.
        """
        return draw_tree(repr(self), self._shown_leaves(), limit)

    def _shown_leaves(self) -> Iterator[Leaf]:
        known: dict[Any, Any] = {}
        for node in self._tree.root.childless():
            if node.path is not None and node.kept is not None and not node.kept.is_concrete:
                yield leaf_at(node, known)
        for path in self._paths.values():
            if path.interpreted:
                yield leaf_of(path, path.prior_probability, known)
        if self.prior_mass_truncated:
            words = f"more than {self.program.max_sites} sites"
            yield Leaf(((words, words),), None, self.prior_mass_truncated, "not followed", asked=lambda _: Asked(words))

    def __repr__(self) -> str:
        found, truncated = 100 * self.prior_mass_found, 100 * self.prior_mass_truncated
        beyond = f", {truncated:.3g} % truncated at {self.program.max_sites} sites" if truncated else ""
        count = f"{len(self):,} path{'s' if len(self) != 1 else ''}"
        return f"{self.program.name}: {count}, {found:.4g} % of the prior mass found{beyond}"
