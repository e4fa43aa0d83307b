"""Routes requests of Ray Serve as ``quire route`` does: to the replica with the least to do, prompt included."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ..routing.policy import Policy
from ..routing.prefix_index import Replica

__all__ = ["PrefixRouter"]

_MOST_MORE = 8.0  # answers that a replica may have more than another and still be preferred for its model


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Chooses by the keyword argument ``hashes`` of a call (``prefix_hashes``).

    Each caller's process has a router of its own, which knows only of that caller's requests.
    """

    def initialize_state(self, **options: Any) -> None:
        """Begin with no knowledge of any replica."""
        self._prefix_policy = Policy()
        self._caches: dict[ReplicaID, Replica] = {}
        self._open_requests: dict[str, tuple[Replica, int]] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas, best first."""
        own = {each.replica_id: self._known(each.replica_id) for each in candidate_replicas}
        for gone in self._caches.keys() - own.keys():
            self._caches.pop(gone).is_ready = False
        by_replica = {own[each.replica_id]: each for each in candidate_replicas}
        users = self._users(by_replica, pending_request)
        best = self._prefix_policy.choose(users, _hashes(pending_request))
        if best is None:
            return []
        others = sorted((each for each in by_replica if each is not best), key=lambda each: each.load)
        return [[by_replica[each]] for each in (best, *others)]

    def _users(self, by_replica: dict[Replica, RunningReplica], pending: PendingRequest | None) -> list[Replica]:
        """Return the replicas that have used a request's model, unless all of them have much to do."""
        model = pending.metadata.multiplexed_model_id if pending is not None else ""
        users = [each for each, running in by_replica.items() if model in running.multiplexed_model_ids]
        least = min((each.load for each in by_replica), default=0.0)
        if not users or min(each.load for each in users) > least + _MOST_MORE:
            return list(by_replica)
        return users

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember what the replica will have in its cache."""
        replica, hashes = self._known(replica_id), _hashes(pending_request)
        n_unread = len(hashes) - self._prefix_policy.index.matches(hashes).get(replica, 0)
        self._prefix_policy.index.add(replica, hashes)
        replica.n_active += 1
        replica.n_unread += n_unread
        self._open_requests[pending_request.metadata.internal_request_id] = (replica, n_unread)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Note that a request has ended, however it did."""
        replica, n_unread = self._open_requests.pop(internal_request_id, (None, 0))
        if replica is not None:
            replica.n_active -= 1
            replica.n_unread -= n_unread

    def _known(self, replica_id: ReplicaID) -> Replica:
        return self._caches.setdefault(replica_id, Replica(str(replica_id)))


def _hashes(pending: PendingRequest | None) -> list[int]:
    return pending.kwargs.get("hashes", []) if pending is not None else []
