"""The paper's own algorithm, `DCC.paper()`: algorithm 2 of Zhou, Yang, Teh and Rainforth (ICML 2020), to the letter.

`algorithm.py` is the loop, in the order of the paper's lines; `local_rmh.py` runs the chains of a path, `pi_mais.py`
estimates its evidence. The utility, the active set, the densities and the posterior are those of the default.
"""

from anabranch.paper.settings import PaperDCC

__all__ = ["PaperDCC"]
