"""Models that several processes run together."""

from collections.abc import Mapping
from typing import final

from typing_extensions import Buffer

from .graph import Executor, ExecutorBase, MoeSpec, Trace, TraceTensor

@final
class RankGroup:
    """Processes, or threads, that run one model together over memory that they share.

    Ranks of one *stage* split its matrices, ``n_split`` of them; stages run layers one after the other.  Rank 0 leads.
    """

    def __init__(self, memory: Buffer, *, rank: int, n_split: int = 1, n_stages: int = 1) -> None:
        """``memory``: zeroed at first, of ``needed_bytes`` or more, the same for all ranks."""
    @staticmethod
    def needed_bytes(n_ranks: int, *, command_bytes: int = 0, exchange_bytes: int = 0) -> int:
        """Return the bytes of memory for a group, with so many for steps and for what stages hand over."""
    @property
    def rank(self) -> int: ...
    @property
    def part(self) -> int:
        """Which share of its stage's matrices the rank has."""
    @property
    def stage(self) -> int: ...
    @property
    def n_split(self) -> int: ...
    @property
    def n_stages(self) -> int: ...
    @property
    def is_broken(self) -> bool: ...
    def fail(self, message: str) -> None:
        """End every wait of every rank, now and later, with a DeviceError of this message; the first one stays."""
    def check(self) -> None:
        """Raise DeviceError if the group is broken."""

@final
class LeadExecutor(ExecutorBase):
    """The executor of rank 0: the other ranks, which ``follow``, run the same steps on their shares of the model."""

    def __init__(self, own: Executor, group: RankGroup) -> None: ...

def follow(executor: Executor, group: RankGroup) -> None:
    """Run the steps of rank 0 until it stops.  Raises DeviceError if a rank fails."""

def staged(trace: Trace, group: RankGroup, stages: Mapping[str, int]) -> Trace:
    """Return the trace for a pipeline: ``stages`` gives weights' stages, other operations follow those around them."""

def weight_names(trace: Trace) -> set[str]:
    """Return the names of the weights that place operations."""

def all_reduce(x: TraceTensor, group: RankGroup) -> TraceTensor:
    """Sum ``x [rows, n]`` over the ranks of a stage; each gets the same bits."""

def share_of_experts(spec: MoeSpec, first: int) -> MoeSpec:
    """Return the spec of a mixture of which a rank has the experts from number ``first`` on."""
