"""Where visits to paths are made: threads of this process, other processes, or the machines of a Ray cluster.

A visit is a function of its task (`search.visit`), so that the same seed gives the same answer on each of them. Workers
that are idle do a share of what others compute (`crew`).
"""

from anabranch.execution.executor import Executor, Threads, executor_of
from anabranch.execution.processes import Processes
from anabranch.execution.ray_cluster import Ray

__all__ = ["Executor", "Processes", "Ray", "Threads", "executor_of"]
