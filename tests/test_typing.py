"""Ordinary typed code of a user passes a type checker: the evidence is a number for the engines that have one."""

import subprocess
import sys
from pathlib import Path

import pytest

import anabranch as ab
import solved

CODE = """
import anabranch as ab

def program() -> None: ...

posterior = ab.infer(program, budget=1000)
better: float = posterior.log_evidence + posterior.more(budget=10).log_evidence_sd
by_setting: float = ab.infer(program, engine=ab.DCC(executions=10)).log_evidence + 1.0
by_particles: float = ab.infer(program, engine=ab.engines.SMC()).log_evidence + 1.0
by_importance: float = ab.infer(program, engine=ab.engines.ImportanceSampling()).log_evidence + 1.0
any_posterior: ab.Posterior = ab.infer(program, engine=ab.engines.LightweightMH())
shown: dict[object, float] = posterior.probability("K")
"""
WRONG = """
import anabranch as ab

def program() -> None: ...

ab.infer(program, engine=ab.engines.LightweightMH()).log_evidence + 1.0
"""


@pytest.mark.slow
def test_mypy_strict_passes_code_that_computes_with_the_evidence(tmp_path):
    source = Path(ab.__file__).parent.parent
    for name, code in (("right.py", CODE), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent"]
    files = [str(tmp_path / "right.py"), str(tmp_path / "wrong.py")]
    found = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), *files],
        capture_output=True, text=True, env={"MYPYPATH": str(source), "PATH": ""}, cwd=tmp_path,
    )  # fmt: skip
    lines = [line for line in found.stdout.splitlines() if "error:" in line]
    assert len(lines) == 1, found.stdout + found.stderr
    assert lines[0].startswith("wrong.py:6: error: Unsupported operand types for +")


@pytest.mark.parametrize(
    ("engine", "kind"),
    [(None, ab.PosteriorWithEvidence), (ab.engines.SMC(), ab.PosteriorWithEvidence),
     (ab.engines.LightweightMH(chains=2), ab.Posterior)],
)  # fmt: skip
def test_the_type_says_whether_the_evidence_is_known(engine, kind, tmp_path):
    posterior = ab.infer(solved.choice, solved.Y, engine=engine, budget=500)
    assert type(posterior) is kind
    posterior.save(tmp_path / "run")
    assert type(ab.load(tmp_path / "run")) is kind
