"""What the rest of the library uses of `divide` is what `anabranch.divide` exports and documents."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import anabranch
from anabranch import divide

SOURCE = Path(anabranch.__file__).parent
FACE = "anabranch.divide"


def imports(file: Path, at_import: bool = False) -> Iterator[tuple[str, str]]:
    """Each module that a file imports from, with each name; a module that is imported whole has the name ''.

    With `at_import` only those that it needs to be imported itself: none for types alone, none in a function.
    """
    tree = ast.parse(file.read_text())
    for node in tree.body if at_import else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def is_within(module: str) -> bool:
    return module == FACE or module.startswith(FACE + ".")


def test_nothing_outside_imports_a_module_of_divide():
    files = [file for file in SOURCE.rglob("*.py") if SOURCE / "divide" not in file.parents]
    used = {(str(file), module, name) for file in files for module, name in imports(file) if is_within(module)}
    assert used
    assert not {each for each in used if each[1] != FACE or each[2] not in divide.__all__}


def test_every_name_is_used_and_documented():
    files = [file for file in SOURCE.rglob("*.py") if SOURCE / "divide" not in file.parents]
    used = {name for file in files for module, name in imports(file) if module == FACE}
    assert divide.__doc__ is not None
    documented = set(divide.__doc__.split("`")[1::2])
    assert used == set(divide.__all__) == documented - {"Division.send"}


def test_divide_has_no_cycle_and_knows_nothing_of_what_is_built_on_it():
    modules = {name_of(file): file for file in (SOURCE / "divide").rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in modules if name != FACE}
    for name, needed in graph.items():
        for module, imported in imports(modules[name], at_import=True):
            if module.startswith("anabranch"):
                target = f"{module}.{imported}" if f"{module}.{imported}" in modules else module
                assert target != FACE, f"{name} imports from the face"
                assert is_within(target) or not (SOURCE / target.removeprefix("anabranch.").split(".")[0]).is_dir()
                needed.update({target} & graph.keys())
    TopologicalSorter({name: needed - {name} for name, needed in graph.items()}).prepare()


def name_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(["anabranch", *parts]).removesuffix(".__init__")
