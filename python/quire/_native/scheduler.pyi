"""Scheduling on a clock from outside."""

from collections.abc import Sequence
from typing import Any

from quire._native.kv import CacheEdit, CachePool

class DynamicWeights:
    """The weights of the dynamic policy.

    Among the requests of one key, in seconds of waiting: ``priority_s``, one level of priority, and, against it,
    ``token_s``, one pending token.  Between keys ``turn_priority`` levels of priority are worth one turn.
    """

    def __init__(self, *, priority_s: float = 10.0, token_s: float = 0.001, turn_priority: float = 50.0) -> None: ...
    @property
    def priority_s(self) -> float: ...
    @property
    def token_s(self) -> float: ...
    @property
    def turn_priority(self) -> float: ...

class SchedulerConfig:
    """Who comes first, and how much fits into a step.

    ``policy``: ``fifo`` (arrival), ``shortest-first`` (length of prompt), ``priority`` (priority, then arrival) or
    ``dynamic`` (fair between keys; of one key by age, length and priority).  ``max_step_*`` are the budgets of a step,
    ``max_running`` that of sequences which hold blocks.  ``kept_back_blocks`` stay free when a sequence is admitted
    (None: one per running sequence), in each group.  After ``max_preemptions`` a sequence is not preempted again for
    want of blocks.  It computes ``turn_tokens`` new tokens before it yields its place to another key.
    Snapshots of recurrent state are at most ``snapshot_tokens`` apart.  ``undivided_prompts``: tokens attend to later
    ones, so that a prompt is computed in one step.
    """

    def __init__(
        self,
        *,
        policy: str = "fifo",
        weights: DynamicWeights = ...,
        max_step_tokens: int = 512,
        max_step_logit_rows: int = 512,
        max_step_kv_tokens: int | None = None,
        max_running: int = 64,
        kept_back_blocks: int | None = None,
        max_preemptions: int = 4,
        turn_tokens: int = 32,
        snapshot_tokens: int = 1024,
        undivided_prompts: bool = False,
    ) -> None: ...
    @property
    def policy(self) -> str: ...
    @property
    def weights(self) -> DynamicWeights: ...
    @property
    def max_step_tokens(self) -> int: ...
    @property
    def max_step_logit_rows(self) -> int: ...
    @property
    def max_step_kv_tokens(self) -> int | None: ...
    @property
    def max_running(self) -> int: ...
    @property
    def kept_back_blocks(self) -> int | None: ...
    @property
    def max_preemptions(self) -> int: ...
    @property
    def turn_tokens(self) -> int: ...
    @property
    def snapshot_tokens(self) -> int: ...

class PlanItem:
    """Tokens of one sequence in one step: ``n_tokens`` from position ``first``, logits of the last ``n_logit_rows``.

    The last ``n_drafted`` may turn out not to be the sequence's.
    """

    @property
    def sequence_id(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_logit_rows(self) -> int: ...
    @property
    def n_drafted(self) -> int: ...
    @property
    def n_encoded(self) -> int:
        """Tokens of the sequence's source, which are encoded before the step's rows."""

class Plan:
    """What a step runs.  ``edits`` of the cache's contents are to be made before, in this order."""

    @property
    def items(self) -> list[PlanItem]: ...
    @property
    def edits(self) -> list[CacheEdit]: ...
    @property
    def admitted(self) -> list[int]: ...
    @property
    def preempted(self) -> list[int]:
        """Sequences that gave their blocks to others."""
    @property
    def yielded(self) -> list[int]:
        """Sequences that gave their places to another key."""
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_logit_rows(self) -> int: ...

class SequenceState:
    """What a sequence was when it was asked for.  ``queue``: ``waiting``, ``running`` or ``following``."""

    @property
    def id(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def drafted(self) -> list[int]:
        """Tokens that may follow: for the next plan, or computed by the last one."""
    @property
    def n_prompt(self) -> int: ...
    @property
    def n_computed(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def n_preemptions(self) -> int:
        """Preemptions for lack of blocks."""
    @property
    def n_yields(self) -> int:
        """Preemptions that gave the place to another key, and pauses."""
    @property
    def has_work(self) -> bool: ...
    @property
    def queue(self) -> str: ...
    @property
    def tables(self) -> list[list[int]]:
        """Blocks of each group; 0 where a block is not needed any more."""
    @property
    def state(self) -> int | None:
        """Its slot, while it runs and layers have a state."""

class SchedulerStats:
    """Sequences in each queue now, and totals since the beginning."""

    @property
    def n_waiting(self) -> int: ...
    @property
    def n_running(self) -> int: ...
    @property
    def n_following(self) -> int: ...
    @property
    def n_paused(self) -> int:
        """Waiting sequences whose answers nobody reads."""
    @property
    def n_preemptions(self) -> int: ...
    @property
    def n_yields(self) -> int:
        """Preemptions that gave the place to another key."""
    @property
    def n_prefix_hit_tokens(self) -> int:
        """Tokens of new sequences that were in the cache."""
    @property
    def n_recovered_tokens(self) -> int:
        """Tokens of preempted sequences that still were in the cache when they came back."""
    @property
    def n_computed_tokens(self) -> int: ...
    @property
    def n_recomputed_tokens(self) -> int:
        """Of those, computed before a preemption."""
    @property
    def n_lost_hit_tokens(self) -> int:
        """Tokens of admitted sequences that layers with full attention still had in the cache, but others had not."""
    @property
    def n_drafted_tokens(self) -> int:
        """Drafted tokens that were computed; ``n_accepted_tokens`` of them were right."""
    @property
    def n_accepted_tokens(self) -> int: ...

class Scheduler:
    """Decides which tokens of which sequences run in a step.  The clock and the tokens come from outside.

    ``Decoder`` has its own; this one is for simulation.  Not thread-safe.
    """

    def __init__(self, config: SchedulerConfig, pool: CachePool) -> None: ...
    def submit(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        now_s: float,
        n_choices: int = 1,
        priority: int = 0,
        key: str = "",
        salt: bytes = b"",
        every_logit_row: bool = False,
        snapshot_positions: Sequence[int] = [],
        source: Sequence[int] = [],
    ) -> list[int]:
        """One sequence per choice; the first computes the prompt for all.  ``max_tokens``: prompt and generated.

        ``snapshot_positions``: ends of messages, where recurrent state is kept for whoever comes back to them.
        ``source``: what an encoder reads, where the pool has a group of source texts.

        CapacityError for what can never fit, RequestError for an empty prompt.
        """
    def plan(self, now_s: float) -> Plan: ...
    def commit(self, plan: Plan) -> None:
        """The step ran.  InternalError when anything happened since the plan."""
    def append(self, sequence_id: int, token: int) -> None:
        """The sampled token of a sequence that has no work without it.

        Where it is the next drafted one, which is computed already, the sequence still has no work: the next row of
        logits of its item is that after the token.  Otherwise the rest of the draft is taken back.
        """
    def draft_limit(self, sequence_id: int) -> int:
        """How many drafted tokens the sequence can use in the next plan at most."""
    def draft(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Tokens that may follow, at most ``draft_limit`` of them; the next plan takes as many as there is room for."""
    def pause(self, sequence_id: int) -> None:
        """Take the sequence's place and blocks until ``resume``: nobody reads its answer."""
    def resume(self, sequence_id: int) -> None: ...
    def remove(self, sequence_id: int) -> None:
        """Finished, cancelled or failed: the sequence's blocks are free."""
    def sequence(self, sequence_id: int) -> SequenceState: ...
    def __contains__(self, sequence_id: int) -> bool: ...
    def batch(self, plan: Plan) -> dict[str, Any]:
        """The plan as the flat arrays that an executor reads; ``groups`` is a list of such."""
    def source_batch(self, plan: Plan) -> dict[str, Any]:
        """The same of the source texts that are encoded before."""
    @property
    def stats(self) -> SchedulerStats: ...
    def check(self) -> None:
        """Verify every invariant; InternalError names the one that broke."""
