"""Run a program again with the same choices, and check that it does the same."""

from collections.abc import Sequence

import numpy as np

from anabranch import errors
from anabranch.divide.decision_node import Question
from anabranch.divide.graph import Node
from anabranch.divide.interpret import interpret, replay
from anabranch.divide.observation import Observation
from anabranch.divide.recorder import Recorder
from anabranch.divide.recording import Choices, Program, Recording, Site

__all__ = ["ReplayingOracle", "check_same", "not_a_function", "rerun"]


def rerun(program: Program, choices: Choices) -> Recording:
    """Make the run with these choices: by the interpreter if they are values of all sites, else along answers."""
    if isinstance(choices, dict):
        return interpret(program, replay(choices))
    oracle = ReplayingOracle(choices)
    return oracle.lead(Recorder(program, oracle))


class ReplayingOracle:
    """An oracle that gives the answers it was given, in order."""

    def __init__(self, answers: Sequence[np.ndarray]) -> None:
        self.answers, self.position = answers, 0

    def lead(self, recorder: Recorder) -> Recording:
        """Run the program with these answers, all of which it must ask for."""
        recording = recorder.run()
        if self.position < len(self.answers):
            raise not_a_function(None, recording)
        return recording

    def assign(self, recording: Recording, site: Site) -> None:
        return None

    def choose_value(self, recording: Recording, site: Site) -> np.ndarray:
        return self._choose(recording, (site.index, None), site.outputs[0])

    def choose_answer(self, recording: Recording, node: Node) -> np.ndarray:
        return self._choose(recording, (None, node), node)

    def _choose(self, recording: Recording, question: Question, node: Node) -> np.ndarray:
        if self.position == len(self.answers):
            return self._beyond(recording, question, node)
        self._check(recording, question)
        self.position += 1
        return self.answers[self.position - 1]

    def _check(self, recording: Recording, question: Question) -> None:
        """Check the question that an answer is for, if it is known."""

    def _beyond(self, recording: Recording, question: Question, node: Node) -> np.ndarray:
        raise not_a_function(None, recording)


def check_same(old: Recording, new: Recording) -> None:
    """Raise `NotAFunction` unless two runs with the same decisions did the same."""
    if old.differences(new):
        raise not_a_function(old, new)


def not_a_function(old: Recording | None, new: Recording) -> errors.NotAFunction:
    """The error for a program that does something else when run again with the same decisions."""
    statements: list[Site | Observation] = [*new.sites, *new.observations]
    changed = [] if old is None else old.differences(new)
    culprit = next((s for s in statements if s.name in changed), None)
    what = "a statement has other parameters or values" if culprit else "it asks other questions"
    return errors.NotAFunction(
        f"run again with the same decisions ({new.describe()}), the program does something else: {what}",
        site=culprit.name if culprit else None,
        where=culprit.where if culprit else (statements[-1].where if statements else None),
        remedy="Take every random number from a sample statement, and do not change global state in the program",
    )
