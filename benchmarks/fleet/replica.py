"""A replica that is computed: Quire's scheduler and cache, with a clock instead of a model."""

from __future__ import annotations

from dataclasses import dataclass

from quire._native.testing import CachePool, Plan, PoolGroup, Scheduler, SchedulerConfig
from quire.routing.prefix_index import Replica

from .costs import Costs
from .workloads import Session

__all__ = ["Call", "SimulatedReplica"]


@dataclass
class Call:
    """A request.  Times are on the simulation's clock."""

    session: Session
    arrived_s: float
    n_prompt: int
    n_answer: int
    first_s: float = 0.0
    ended_s: float = 0.0
    n_done: int = 0
    n_unread: int = 0  # blocks of the prompt that are not in the cache


class SimulatedReplica(Replica):
    """One server.  With a ``scale`` above 1, a token stands for so many, in prompts, answers and blocks."""

    def __init__(self, number: int, costs: Costs, scale: int = 1, block_tokens: int = 32) -> None:
        super().__init__(str(number))
        self.costs, self.scale, self.rate = costs, scale, 1.0
        block = max(1, block_tokens // scale)
        n_blocks = max(8, costs.cache_tokens // scale // block)
        config = SchedulerConfig(policy="dynamic", max_step_tokens=costs.step_tokens, max_running=costs.running)
        self.scheduler = Scheduler(config, CachePool([PoolGroup(n_blocks + 1)], block_tokens=block))
        self.calls: dict[int, Call] = {}
        self.plan: Plan | None = None
        self.busy_s = 0.0

    def submit(self, call: Call, now_s: float) -> None:
        """Queue a request."""
        tokens = [token & 0x7FFFFFFF for token in call.session.tokens]
        (id_,) = self.scheduler.submit(tokens, max_tokens=call.n_prompt + call.n_answer, now_s=now_s)
        self.calls[id_] = call

    def begin(self, now_s: float) -> float | None:
        """Plan a step; return when it ends, or None if there is nothing to do."""
        if not self.calls:
            return None
        plan = self.scheduler.plan(now_s)
        n_prompt = n_rows = n_context = n_prompt_context = 0
        for item in plan.items:
            if item.n_tokens == 1 and item.first >= self.calls[item.sequence_id].n_prompt:
                n_rows += 1
                n_context += item.first
            else:
                n_prompt += item.n_tokens
                n_prompt_context += item.n_tokens * (item.first + item.n_tokens // 2)
        self.plan = plan
        # A token that stands for n: n tokens of a prompt, each with n times the context; n steps of an answer.
        n = self.scale
        spent_s = n * self.costs.seconds(n_prompt, n_rows, n * n_context, n * n_prompt_context) * self.rate
        self.busy_s += spent_s
        return now_s + spent_s

    def end(self, now_s: float) -> list[Call]:
        """End the step; return the requests that are answered."""
        assert self.plan is not None
        self.scheduler.commit(self.plan)
        ended = []
        for item in self.plan.items:
            if not item.n_logit_rows:
                continue
            call = self.calls[item.sequence_id]
            call.n_done += 1
            if call.n_done == 1:
                call.first_s = now_s
                self.n_unread -= call.n_unread
            if call.n_done < call.n_answer:
                self.scheduler.append(item.sequence_id, 1)
                continue
            call.ended_s = now_s
            self.scheduler.remove(item.sequence_id)
            del self.calls[item.sequence_id]
            ended.append(call)
        self.plan = None
        return ended
