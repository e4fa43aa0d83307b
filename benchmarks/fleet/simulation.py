"""A fleet on a simulated clock: sessions arrive, the front chooses a replica, replicas run steps."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire.routing.policy import Policy
from quire.routing.prefix_index import PrefixIndex, Replica

from .costs import Costs
from .replica import Call, SimulatedReplica
from .workloads import Session, Workload

__all__ = ["ROUTERS", "Fleet", "Report"]

HASHED_TOKENS = 64  # about 256 bytes of text, a block of the front


class _AtRandom(Policy):
    def choose(self, replicas: Sequence[Replica], hashes: Sequence[int], tried: object = ()) -> Replica | None:
        return self.draw.choice(replicas)


class _LeastLoaded(Policy):
    def choose(self, replicas: Sequence[Replica], hashes: Sequence[int], tried: object = ()) -> Replica | None:
        least = min(replica.n_active for replica in replicas)
        return self.draw.choice([replica for replica in replicas if replica.n_active == least])


ROUTERS: dict[str, type[Policy]] = {"random": _AtRandom, "least": _LeastLoaded, "prefix": Policy}


@dataclass(frozen=True)
class Report:
    """The figures of requests that arrived after the warm-up.

    Attributes:
        n: Requests answered.
        good_per_s: Requests per second and replica within the workload's limits.
        good_share: Their share.
        hits: Share of the prompts' tokens that were in the cache.
        first_s: Time to the first token: p50, p90, p99.
        token_s: Time per token after it: p50, p99.
        busy: Share of the time in which a replica computes.
        waiting: Requests that are not answered at the end, per replica.
    """

    n: int
    good_per_s: float
    good_share: float
    hits: float
    first_s: tuple[float, float, float]
    token_s: tuple[float, float]
    busy: float
    waiting: float


@dataclass
class Fleet:
    """Replicas, a router and a workload.

    Attributes:
        sessions_per_s: New sessions per second and replica.
        router: One of ROUTERS.
        index_blocks: Blocks that the front remembers for each replica.
    """

    costs: Costs
    workload: Workload
    n_replicas: int
    sessions_per_s: float
    router: str = "prefix"
    scale: int = 1
    seed: int = 1
    index_blocks: int = 1 << 14
    slow: Callable[[int], float] = field(default=lambda n_busy: 1.0)

    def run(self, warm_s: float, last_s: float) -> Report:
        """Simulate ``last_s`` seconds; requests that arrive in the first ``warm_s`` do not count."""
        self.draw = random.Random(self.seed)
        self.replicas = [SimulatedReplica(i, self.costs, self.scale) for i in range(self.n_replicas)]
        index = PrefixIndex(most=self.index_blocks * self.n_replicas)
        self.policy = ROUTERS[self.router](draw=random.Random(self.seed + 1), index=index)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.numbers, self.order, self.n_sessions = itertools.count(1), itertools.count(), itertools.count()
        self.answered: list[Call] = []
        self.n_busy = 0
        self._arrive(0.0, is_first=True)
        self._at(warm_s, self._mark)
        while self.events and self.events[0][0] < last_s:
            now_s, _, act = heapq.heappop(self.events)
            act(now_s)
        return self._report(warm_s, last_s)

    def _at(self, when_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), act))

    def _arrive(self, now_s: float, is_first: bool = False) -> None:
        """Let sessions begin.  Those under way at the start are somewhere in their middle."""
        rate = self.sessions_per_s * self.n_replicas
        work = self.workload
        if is_first:
            lasting_s = work.calls * (work.pause_s + work.long_share * (work.long_pause_s - work.pause_s))
            for _ in range(int(rate * lasting_s)):
                session = self._session()
                session.skip()
                self._at(self.draw.random() * self.workload.pause_s, lambda at_s, each=session: self._call(each, at_s))
        else:
            self._call(self._session(), now_s)
        self._at(now_s + self.draw.expovariate(rate), self._arrive)

    def _session(self) -> Session:
        # With a seed for each, so that all routers see the same sessions.
        draw = random.Random(f"{self.seed}.{next(self.n_sessions)}")
        return Session(self.workload, draw, self.scale, self.numbers)

    def _call(self, session: Session, now_s: float) -> None:
        call = Call(session, now_s, len(session.tokens), session.n_answer)
        hashes = session.prefix_hashes(max(1, HASHED_TOKENS // self.scale))
        replica = self.policy.choose(self.replicas, hashes)
        assert isinstance(replica, SimulatedReplica)
        call.n_unread = len(hashes) - self.policy.index.matches(hashes).get(replica, 0)
        replica.n_active += 1
        replica.n_unread += call.n_unread
        self.policy.index.add(replica, hashes)
        self._at(now_s + self.costs.request_s, lambda at_s: self._submit(replica, call, at_s))

    def _submit(self, replica: SimulatedReplica, call: Call, now_s: float) -> None:
        replica.submit(call, now_s)
        if replica.plan is None:
            self.n_busy += 1
            self._begin(replica, now_s)

    def _begin(self, replica: SimulatedReplica, now_s: float) -> None:
        replica.rate = self.slow(self.n_busy)
        end_s = replica.begin(now_s)
        if end_s is None:
            self.n_busy -= 1
        else:
            self._at(end_s, lambda at_s: self._end(replica, at_s))

    def _end(self, replica: SimulatedReplica, now_s: float) -> None:
        for call in replica.end(now_s):
            replica.n_active -= 1
            self.answered.append(call)
            session = call.session
            if session.n_left > 1:
                session.next()
                self._at(now_s + session.pause(), lambda at_s, each=session: self._call(each, at_s))
        self._begin(replica, now_s)

    def _mark(self, now_s: float) -> None:
        """Remember the counters at the end of the warm-up."""
        self.before = self._totals()

    def _totals(self) -> tuple[int, int, float]:
        found = [replica.scheduler.stats for replica in self.replicas]
        hit = sum(stats.n_prefix_hit_tokens for stats in found)
        return hit, sum(stats.n_computed_tokens for stats in found), sum(each.busy_s for each in self.replicas)

    def _report(self, warm_s: float, last_s: float) -> Report:
        counted = [call for call in self.answered if call.arrived_s >= warm_s]
        first = sorted(call.first_s - call.arrived_s for call in counted)
        each = sorted(
            (call.ended_s - call.first_s) / (call.n_answer - 1) / self.scale for call in counted if call.n_answer > 1
        )
        work = self.workload
        good = sum(
            call.first_s - call.arrived_s <= work.first_token_s
            and (call.ended_s - call.first_s) <= work.token_s * self.scale * max(1, call.n_answer - 1)
            for call in counted
        )
        hit, computed, busy_s = (after - before for after, before in zip(self._totals(), self.before, strict=True))
        n_answer = sum(call.n_answer - 1 for call in counted)
        seconds = (last_s - warm_s) * self.n_replicas
        return Report(
            n=len(counted),
            good_per_s=good / seconds,
            good_share=good / max(1, len(counted)),
            hits=hit / max(1, hit + computed - n_answer),
            first_s=(_share(first, 0.5), _share(first, 0.9), _share(first, 0.99)),
            token_s=(_share(each, 0.5), _share(each, 0.99)),
            busy=busy_s / seconds,
            waiting=sum(replica.n_active for replica in self.replicas) / self.n_replicas,
        )


def _share(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
