"""The decision sequences of a path, and what is said of it without computing anything.

Of each sequence there is the recording, or what another run needs to make it again (`kept.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.divide.kept import Kept, SiteInfo
from anabranch.divide.recording import Choices, Decision, Program, Recording
from anabranch.divide.repetitions import Signature
from anabranch.label import Label, is_same

__all__ = ["Sequences", "counted", "signature_of"]


class Sequences:
    """The decision sequences of a path."""

    def __init__(self, program: Program, recordings: Sequence[Recording], apart: bool) -> None:
        self.program, self.apart = program, apart
        self._kept: list[Kept] = []
        self.interpreted = False
        """Whether the path is run by the interpreter, one Python run per point."""
        self.fault: errors.AnabranchError | None = None
        """The error for an observation outside its support, if that makes the density zero on the whole path."""
        self.dim = 0
        """The number of coordinates of a point."""
        self._of_sites = Signature()
        for recording in recordings:
            self._keep(recording)

    def _keep(self, recording: Recording) -> None:
        fault = next((each.fault for each in recording.observations if each.fault), None)
        self.fault = fault if not self._kept or not fault else self.fault
        if not self._kept or (recording.concrete and not self.interpreted):
            self.interpreted, self._of_sites, self.dim = recording.concrete, recording.signature, recording.dim
            self._kept.insert(0, recording.kept)
        else:
            self._kept.append(recording.kept)
        recording.kept.complete(recording)

    @property
    def _sequences(self) -> list[Kept]:
        """One for each decision sequence; if the interpreter runs the path, one of its runs."""
        return self._kept[:1] if self.interpreted else self._kept

    @property
    def sequences(self) -> int:
        """How many decision sequences it has; one if the interpreter runs it."""
        return len(self._sequences)

    @property
    def recordings(self) -> list[Recording]:
        """One for each decision sequence; if the interpreter runs the path, one of its runs."""
        return [kept.recording for kept in self._sequences]

    @property
    def recording(self) -> Recording:
        """The recording of its first decision sequence; the others have the same sites."""
        return self._kept[0].recording

    @property
    def has_gradient(self) -> bool:
        """Whether `differentiate` can be used."""
        return not self.interpreted

    @property
    def addresses(self) -> tuple[str, ...]:
        """The names of the sites, in the order of the program."""
        return tuple([each[0] for each in self._of_sites])

    @property
    def signature(self) -> tuple[Any, ...]:
        """The addresses and the values fixed, which no other path shares; and the answers, of a path apart."""
        return signature_of(self._of_sites, self._kept[0].decisions) if self.apart else self._of_sites

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """The sites, fixed ones included, with the columns of their coordinates."""
        return self._kept[0].outline.sites

    @property
    def fixed(self) -> dict[str, np.ndarray]:
        """The values to which sites are fixed, by name."""
        return self._kept[0].outline.fixed

    @cached_property
    def discrete(self) -> np.ndarray:
        """Which of the coordinates are values of discrete sites."""
        mask = np.zeros(self.dim, bool)
        for site in self.sites:
            if site.columns is not None:
                mask[site.columns] = site.discrete
        mask.setflags(write=False)
        return self.program.recent.same_array(mask)

    @property
    def decisions(self) -> tuple[tuple[str, ...], ...]:
        """The answers that lead here, in words, for each decision sequence of the path."""
        if self.interpreted:
            fixed = self.fixed.items()
            return (tuple(f"{name} = {value.item() if value.ndim == 0 else value}" for name, value in fixed),)
        return tuple(tuple(map(str, kept.decisions)) for kept in self._kept)

    @property
    def names(self) -> list[str]:
        """The sites and deterministics that executions of the path may have."""
        deterministics = (name for kept in self._sequences for name in kept.outline.deterministics)
        return list(dict.fromkeys([*self.addresses, *deterministics]))

    @property
    def constant_arrays(self) -> dict[str, np.ndarray | Label]:
        """What all executions of its first decision sequence share, by name."""
        outline = self._kept[0].outline
        return {**outline.fixed, **dict(outline.constants)}

    @property
    def constants(self) -> dict[str, Any]:
        """What all executions of the path share, by name: the fixed sites, and deterministics of them alone. Each is a
        number, a list of numbers, or a label: text, None, or a tuple."""
        others = [dict(kept.outline.constants) for kept in self._sequences[1:]]
        fixed = self.fixed  # the same for all decision sequences
        return {
            name: value.value if isinstance(value, Label) else value.tolist()
            for name, value in self.constant_arrays.items()
            if name in fixed or all(name in other and is_same(value, other[name]) for other in others)
        }

    @cached_property
    def description(self) -> str:
        """`K = 5`, `position > 0 (walk.py:12)`: what all decision sequences of the path have in common."""
        first, *others = self.decisions
        common = [text for text in first if all(text in other for other in others)]
        text = counted(common) or ("sites " + ", ".join(self.addresses) if self.interpreted or others else "always")
        return f"{text} [{len(self.decisions)} decision sequences]" if others else text

    @property
    def last_decision(self) -> Decision | None:
        """The last decision on the way here."""
        decisions = self._kept[0].decisions
        return decisions[-1] if decisions else None

    @property
    def is_determined(self) -> bool:
        """Whether the values of its fixed sites determine it, and there are any: no guard, and no interpreter."""
        if self.interpreted or len(self._kept) > 1:
            return False
        decisions = self._kept[0].decisions
        return bool(decisions) and all(decision.node is None for decision in decisions)

    @property
    def choices(self) -> list[Choices]:
        """What `rebuild` needs of each decision sequence."""
        return [kept.choices for kept in self._sequences]


def counted(texts: Sequence[str]) -> str:
    """Decisions on one line, each once: a loop asks the same question again and again."""
    times = Counter(texts)
    return ", ".join(f"{text} ×{n}" if n > 1 else text for text, n in times.items())


def signature_of(signature: Signature, decisions: Iterable[Decision]) -> tuple[Any, ...]:
    """What tells a path apart, with these sites and decisions, from all others."""
    return (*signature, tuple(d.answer.tobytes() for d in decisions if d.node is not None))
