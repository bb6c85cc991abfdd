"""A posterior as a page, and in the formats of other libraries: ArviZ, xarray, pandas, NetCDF and Zarr."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anabranch.combine.draws import Draws, checked_number
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.divide import Program
from anabranch.settings import whole

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from anabranch.report.arviz import Labels, Source
    from anabranch.report.plots import Plots

__all__ = ["Exported"]


class Exported:
    """What a posterior gives to readers and to other libraries."""

    program: Program
    solutions: tuple[Solution, ...]
    run: Run

    if TYPE_CHECKING:

        @property
        def evidence(self) -> Evidence: ...
        def draws(self, n: int, seed: int = 0) -> Draws: ...
        @property
        def plot(self) -> Plots: ...
        @property
        def warnings(self) -> list[str]: ...
        def solution(self, path: str | None = None) -> Solution: ...
        def summary(self, names: Iterable[str] | None = None) -> pd.DataFrame: ...

    def report(self, file: str | os.PathLike[str]) -> None:
        """Write the posterior as one page of HTML, which needs no network.

        It has the tree of paths, tables that can be sorted, diagnostics in words, pictures, the text of the program,
        and the call that repeats the run. Of many paths it has the heaviest, and the probabilities of decisions.

        Example:
            >>> import anabranch as ab, pathlib, tempfile
            >>> from anabranch import programs
            >>> posterior = ab.infer(programs.branching, 2.0, budget=20_000)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     posterior.report(f"{folder}/branching.html")
            ...     "<h1>Posterior of branching</h1>" in pathlib.Path(folder, "branching.html").read_text()
            True
        """
        from anabranch.report.page import Subject, write

        write(file, Subject(self.program, self.solutions, self.evidence, self.run, self.warnings, self.plot,
                            self.summary))  # fmt: skip

    def to_arviz(
        self,
        path: str | None = None,
        n: int = 1000,
        seed: int = 0,
        *,
        chains: int = 4,
        groups: Iterable[str] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        """The posterior for ArviZ: an `InferenceData`, or a `DataTree` of xarray from ArviZ 1 on.

        Args:
            path: the description of one path, for all its variables; by default all paths, for those that they share.
            n: draws in all, at least.
            seed: where every random choice comes from.
            chains: into how many the draws, which are independent, are split: ArviZ asks for several.
            groups: those wanted of `posterior`, `log_likelihood`, `posterior_predictive`, `prior`, `prior_predictive`
                and `observed_data`; by default all.
            coords: labels along named axes.
            dims: names for the axes of variables; by default those of plates.

        Example:
            >>> import anabranch as ab
            >>> from anabranch import programs
            >>> data = ab.infer(programs.branching, 2.0, budget=20_000).to_arviz(n=400)
            >>> data.posterior["z0"].shape, data.posterior_predictive["y"].shape
            ((4, 100), (4, 100))
        """
        from anabranch.report.arviz import inference_data

        return inference_data(self._datasets(path, n, seed, chains, groups, _labels(coords, dims)))

    def to_xarray(
        self,
        n: int = 1000,
        seed: int = 0,
        *,
        chains: int = 4,
        groups: Iterable[str] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        paths: int = 20,
    ) -> xr.DataTree:
        """A tree of xarray with the groups of `to_arviz`, and below `paths` with those of each of the heaviest paths.

        The node of a path is its number in `posterior.paths`, and its groups have the attributes `path` and
        `path_weight`.
        """
        from anabranch.report.arviz import tree

        labels, paths = _labels(coords, dims), whole(0)("paths", paths)
        groups = None if groups is None else list(groups)
        found = dict(self._datasets(None, n, seed, chains, groups, labels))
        for k, (solution, weight) in enumerate(zip(self.solutions, self.evidence.weights, strict=True)):
            if k < paths and weight > 0 and len(solution.points):
                of_path = self._datasets(solution.path.description, n, seed, chains, groups, labels)
                found |= {f"paths/{k}/{name}": each for name, each in of_path.items()}
        return tree(found)

    def to_netcdf(self, file: str | os.PathLike[str], n: int = 1000, seed: int = 0, **settings: Any) -> None:
        """Write `to_xarray` to a NetCDF file; the settings are those of `to_xarray`."""
        self.to_xarray(n, seed, **settings).to_netcdf(file)

    def to_zarr(self, folder: str | os.PathLike[str], n: int = 1000, seed: int = 0, **settings: Any) -> None:
        """Write `to_xarray` to a Zarr folder; the settings are those of `to_xarray`."""
        if find_spec("zarr") is None:
            raise ImportError("to_zarr needs the package zarr: pip install zarr, or use to_netcdf")
        self.to_xarray(n, seed, **settings).to_zarr(folder)

    def to_dataframe(self, n: int = 1000, seed: int = 0) -> pd.DataFrame:
        """A row for each of n draws, a column for each number: `mu[0]` is the first of a vector; NaN where absent."""
        return self.draws(n, seed).to_dataframe()

    def _datasets(
        self, path: str | None, n: int, seed: int, chains: int, groups: Iterable[str] | None, labels: Labels
    ) -> dict[str, xr.Dataset]:
        from anabranch.report.arviz import GROUPS, Source, datasets

        n, seed = checked_number(n, seed)
        chains = whole(1)("chains", chains)
        source: Source = Source.of_all(self.program, self.solutions, self.evidence, self.run)
        if path is not None:
            solution = self.solution(path)
            source = source.of_path(solution, float(self.evidence.weights[self.solutions.index(solution)]))
        return datasets(source, n, chains, seed, GROUPS if groups is None else groups, labels)


def _labels(coords: Mapping[str, Sequence[Any]] | None, dims: Mapping[str, Sequence[str]] | None) -> Labels:
    from anabranch.report.arviz import Labels

    return Labels(coords or {}, dims or {})
