"""A fleet on a simulated clock: sessions arrive, the front chooses a replica, replicas run steps."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from quire.routing.policy import Policy
from quire.routing.prefix_index import PrefixIndex, Replica

from .costs import Costs
from .replica import Call, SimulatedReplica
from .workloads import Session, Workload

__all__ = ["ROUTERS", "Fleet", "Report", "arrivals", "figures", "session_of"]


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
        index_tokens: Tokens that the front remembers for each replica, in blocks of two of the cache's (64 tokens are
            about 256 bytes of text).
        block_tokens: Tokens of a block of the cache.
    """

    costs: Costs
    workload: Workload
    n_replicas: int
    sessions_per_s: float
    router: str = "prefix"
    scale: int = 1
    seed: int = 1
    index_tokens: int = 1 << 20
    block_tokens: int = 32
    slow: Callable[[int], float] = field(default=lambda n_busy: 1.0)

    def run(self, warm_s: float, last_s: float) -> Report:
        """Simulate ``last_s`` seconds; requests that arrive in the first ``warm_s`` do not count."""
        self.arrivals = arrivals(self.workload, self.sessions_per_s * self.n_replicas, self.seed)
        self.replicas = [SimulatedReplica(i, self.costs, self.scale, self.block_tokens) for i in range(self.n_replicas)]
        index = PrefixIndex(most=self.index_tokens // (2 * self.block_tokens) * self.n_replicas)
        self.policy = ROUTERS[self.router](draw=random.Random(self.seed + 1), index=index)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.numbers, self.order = itertools.count(1), itertools.count()
        self.answered: list[Call] = []
        self.n_busy = 0
        self._await_session()
        self._at(warm_s, self._mark)
        while self.events and self.events[0][0] < last_s:
            now_s, _, act = heapq.heappop(self.events)
            act(now_s)
        return self._report(warm_s, last_s)

    def _at(self, when_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), act))

    def _await_session(self) -> None:
        when_s, number, is_under_way = next(self.arrivals)

        def arrive(now_s: float) -> None:
            session = session_of(self.workload, self.seed, number, self.scale, self.numbers)
            if is_under_way:
                session.skip()
            self._call(session, now_s)
            self._await_session()

        self._at(when_s, arrive)

    def _call(self, session: Session, now_s: float) -> None:
        call = Call(session, now_s, len(session.tokens), session.n_answer)
        hashes = session.prefix_hashes(max(1, 2 * self.block_tokens // self.scale))
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
            else:
                del session.tokens[:], session.hashes[:]  # the report needs only the calls
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
        hit, computed, busy_s = (after - before for after, before in zip(self._totals(), self.before, strict=True))
        n_answer = sum(call.n_answer - 1 for call in counted)
        seconds = (last_s - warm_s) * self.n_replicas
        return figures(
            counted, self.workload, seconds, self.scale,
            hits=hit / max(1, hit + computed - n_answer),
            busy=busy_s / seconds,
            waiting=sum(replica.n_active for replica in self.replicas) / self.n_replicas,
        )  # fmt: skip


def arrivals(workload: Workload, sessions_per_s: float, seed: int) -> Iterator[tuple[float, int, bool]]:
    """Yield when each session begins, its number, and whether it is one that began before: somewhere in its middle."""
    draw = random.Random(seed)
    pause_s = workload.pause_s + workload.long_share * (workload.long_pause_s - workload.pause_s)
    n = int(sessions_per_s * workload.calls * pause_s)
    under_way = sorted((draw.random() * workload.pause_s, number) for number in range(n))

    def new() -> Iterator[tuple[float, int]]:
        now_s = 0.0
        for number in itertools.count(n):
            now_s += draw.expovariate(sessions_per_s)
            yield now_s, number

    for when_s, number in heapq.merge(under_way, new()):
        yield when_s, number, number < n


def session_of(workload: Workload, seed: int, number: int, scale: int, numbers: itertools.count[int]) -> Session:
    """Return a session that depends on its number alone, so that all routers see the same ones."""
    return Session(workload, random.Random(f"{seed}.{number}"), scale, numbers)


def figures(
    calls: Sequence[Call], work: Workload, seconds: float, scale: int = 1, *, hits: float, busy: float, waiting: float
) -> Report:
    """Return the figures of answered requests.  ``seconds``: those of all replicas together."""
    first = sorted(call.first_s - call.arrived_s for call in calls)
    each = sorted((call.ended_s - call.first_s) / (call.n_answer - 1) / scale for call in calls if call.n_answer > 1)
    good = sum(
        call.first_s - call.arrived_s <= work.first_token_s
        and (call.ended_s - call.first_s) <= work.token_s * scale * max(1, call.n_answer - 1)
        for call in calls
    )
    return Report(
        n=len(calls),
        good_per_s=good / seconds,
        good_share=good / max(1, len(calls)),
        hits=hits,
        first_s=(_share(first, 0.5), _share(first, 0.9), _share(first, 0.99)),
        token_s=(_share(each, 0.5), _share(each, 0.99)),
        busy=busy,
        waiting=waiting,
    )


def _share(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
