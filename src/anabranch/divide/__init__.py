"""Divide: from a program to its paths (a path is what the paper calls a straight-line program, SLP).

The rest of the library uses the names below, and no module of `divide` by itself.

Programs and paths
    `Program` is a function with its arguments. `divide` and `find_paths` make a `Division` of it, whose `Path`s have
    sites (`SiteInfo`), a density (`Evaluation`), prior draws (`PriorDraws`) and values by name (`NamedValues`).
    `rebuild` makes a path again from the choices of its runs, and `hours_warning` says which program would run in the
    interpreter for hours. `lines_of` draws a tree of paths as `Line`s; each path is made a `Leaf` by `leaf_of`, below
    the questions that were `Asked` on the way, of a site or of a `CONDITION`. `returned` is what a program
    returns in one execution, where that `has_functions`.
Executions
    `Division.send` executes a program with `Constraints`, values of some of its sites. `Executions` are those at one
    node of the `Tree` of decisions, at a leaf those of one path; a `Batch` has the values that they have drawn so far.
    `Restarted` says that the division began again with another form of the program, and `user_location` names the line
    of the program that runs.
One decision sequence
    A `Recording` is one run of the program: its graph, with its `Site`s and `Observation`s. Of thousands, those used
    last are kept, and the others made again from their decisions (module kept). The graph consists of
    `Node`s, computed by `Step`s; `alias` is a step that copies a value, and `Lanes` has the values that JAX computes.
    `as_input` is the node of a recorded value (a `PathTracer`) or a constant; `with_batch_axis` gives a constant the
    axis of a batch. `inside` is the context in which JAX computes constants although a program is being recorded.
Densities
    `Terms` are the summands of the log density of a recording, one for each site and observation. An `Evaluator`
    computes some of them, by NumPy or by JAX. `Density` is the log density of a recording as a function of a point,
    `log_density_function` that of a path as a function for JAX, `numbers_per_point` how much a density computes, and
    `HostCost` what its gradient takes by NumPy.
    `Jitted` is a function that JAX compiles, with compilations counted and limits kept, `in_blocks` calls it for any
    number of points, and `is_compiling` says whether a thread compiles; `compiling` names what is compiled at this
    moment, as `name_work` has named it. `evaluate_jaxpr` computes a jaxpr with NumPy; `AT_ONCE` is how many executions
    NumPy evaluates at a time.
Factors
    `Factors` has the summands of a density, and the discrete coordinates on which each of their elements depends;
    `SummandEvaluator` computes them.
Sites and their distributions
    `site_transforms` has functions of a site with given parameters: its unconstrained coordinates, their Jacobian,
    its possible values. `values_of` lists the values of a discrete site, `why_not_drawn` says why the density of a
    site is not that of its draws, and `draw` draws from a distribution. `base_support` and `unwrapped` are a support
    and a distribution without their wrappers.
Properties of a path
    `finite_values`, `integer_bounds` (`Bounds` of each coordinate), `prior_is_sampled`, `is_prior_alone`,
    `is_quadratic`, `quadratic_columns`, `analytic_columns`, `independent_sites` and `supports_are_constant`.
Discovery
    `propose` and `neighbours` make `Proposals` that lead to new paths, `counts_of` counts executions by path, and
    `known_points` are executions as points of their path. A `PathMove` leads a walk over paths from one that it may be
    at (`can_walk`) to one near it (`move_between_paths`) or to any (`move_to_any_path`, by `DecisionTables` that
    `fit_decision_tables` makes); `label_names` are the sites that label the blocks of a partition. A climb over paths
    takes one of the `number_of_choices` of a path after the other, with each of the `values_of_choice`, to the
    `paths_with` these `Values` of fixed sites; `changes_of` are those that differ in one, and a `Holding` is what is
    kept. `Solving` leads executions to what none has met, and `Solved` is what it has tried; `more_draws` are prior
    draws from where they were led to. `lead_to` leads executions to values of the user's own, `that_have` are those
    that have them, `sites_not_met` the sites that none has met, and `check_start_names` refuses those that no path has.
Saving
    `function_fingerprint`, `program_fingerprint` and `data_fingerprint` tell whether two programs are the same, and
    `remade` makes a program from its function in the form that it had; `source_of` is the text of a function.
Sharing
    Within `helped`, `Helpers` do a share of large work: each fills an `Order`, with what it has of the program.
Seeds
    `stable_hash` is the same number in every process.
"""

from anabranch.divide import site_transforms
from anabranch.divide.analytic import analytic_columns
from anabranch.divide.batch import Batch, Constraints, stable_hash
from anabranch.divide.compiled import log_density_function, numbers_per_point
from anabranch.divide.decision_tables import DecisionTables, fit_decision_tables, move_to_any_path
from anabranch.divide.density import Density
from anabranch.divide.discover import Proposals, counts_of, known_points, neighbours, propose
from anabranch.divide.dispatch import Jitted, compiling, in_blocks, is_compiling, name_work
from anabranch.divide.distributions import base_support, unwrapped
from anabranch.divide.division import Division, Restarted, divide, find_paths
from anabranch.divide.evaluation import Evaluation, NamedValues
from anabranch.divide.executions import Executions
from anabranch.divide.factors import Factors
from anabranch.divide.families import CONDITION, Asked, Leaf, leaf_of
from anabranch.divide.fingerprint import data_fingerprint, function_fingerprint, program_fingerprint, remade, source_of
from anabranch.divide.graph import Node, Step, alias, with_batch_axis
from anabranch.divide.host_gradient import HostCost
from anabranch.divide.internals import PathTracer, as_input, inside
from anabranch.divide.numpy_backend import evaluate_jaxpr
from anabranch.divide.observation import Observation
from anabranch.divide.packing import Lanes
from anabranch.divide.path import Path, SiteInfo, rebuild
from anabranch.divide.path_moves import PathMove, Values, can_walk, label_names, move_between_paths, paths_with
from anabranch.divide.prior import PriorDraws, more_draws
from anabranch.divide.quadratic import is_quadratic, quadratic_columns
from anabranch.divide.recording import Program, Recording, Site
from anabranch.divide.remedies import hours_warning
from anabranch.divide.returned import has_functions, returned
from anabranch.divide.samplers import draw
from anabranch.divide.scores import AT_ONCE
from anabranch.divide.sharing import Helpers, Order, helped
from anabranch.divide.show import Line, lines_of
from anabranch.divide.site_choices import Holding, changes_of, number_of_choices, values_of_choice
from anabranch.divide.solve import Solved, Solving
from anabranch.divide.source_location import user_location
from anabranch.divide.start import check_start_names, lead_to, sites_not_met, that_have
from anabranch.divide.summand_evaluation import SummandEvaluator
from anabranch.divide.support import (
    Bounds,
    finite_values,
    independent_sites,
    integer_bounds,
    is_prior_alone,
    prior_is_sampled,
    supports_are_constant,
    values_of,
    why_not_drawn,
)
from anabranch.divide.terms import Evaluator, Terms
from anabranch.divide.tree import Tree

__all__ = [
    "AT_ONCE", "CONDITION", "Asked", "Batch", "Bounds", "Constraints", "DecisionTables", "Density", "Division",
    "Evaluation", "Evaluator", "Executions", "Factors", "Helpers", "Holding", "HostCost", "Jitted", "Lanes", "Leaf",
    "Line", "NamedValues", "Node", "Observation", "Order", "Path", "PathMove", "PathTracer", "PriorDraws",
    "Program", "Proposals", "Recording", "Restarted", "Site", "SiteInfo", "Solved", "Solving", "Step",
    "SummandEvaluator", "Terms", "Tree", "Values", "alias", "analytic_columns", "as_input", "base_support",
    "can_walk", "changes_of", "check_start_names", "compiling", "counts_of", "data_fingerprint", "divide", "draw",
    "evaluate_jaxpr", "find_paths", "finite_values", "fit_decision_tables", "function_fingerprint", "has_functions",
    "helped", "hours_warning", "in_blocks", "independent_sites", "inside", "integer_bounds", "is_compiling",
    "is_prior_alone", "is_quadratic", "known_points", "label_names", "lead_to", "leaf_of", "lines_of",
    "log_density_function", "more_draws", "move_between_paths", "move_to_any_path", "name_work", "neighbours",
    "number_of_choices", "numbers_per_point", "paths_with", "prior_is_sampled", "program_fingerprint", "propose",
    "quadratic_columns", "rebuild", "remade", "returned", "site_transforms", "sites_not_met", "source_of",
    "stable_hash", "supports_are_constant", "that_have", "unwrapped", "user_location", "values_of",
    "values_of_choice", "why_not_drawn", "with_batch_axis",
]  # fmt: skip
