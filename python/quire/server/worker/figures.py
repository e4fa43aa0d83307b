"""Figures of the decoder for the listener's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...system import process_memory
from . import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..._native.engine import DecoderStats, DrafterStats
    from .peers import Peers

__all__ = ["beat_of"]


def beat_of(
    stats: DecoderStats, cache: Iterable[tuple[str, int, int]], *, rests: bool, peers: Peers | None = None
) -> wire.Beat:
    """Return a heartbeat with the current figures.

    ``cache``: bytes held and cached of each kind of layer.  ``rests``: the model is paused or sleeps.
    """
    rss, anonymous = process_memory()
    return wire.Beat(
        n_steps=stats.n_steps,
        n_waiting=stats.n_waiting,
        n_running=0 if rests else stats.n_running,  # otherwise it would look as if it hung
        n_requests=stats.n_requests,
        n_computed_tokens=stats.n_computed_tokens,
        n_generated_tokens=stats.n_generated_tokens,
        n_prefix_hit_tokens=stats.n_prefix_hit_tokens,
        n_preemptions=stats.n_preemptions,
        n_usable_blocks=stats.n_usable_blocks,
        n_free_blocks=stats.n_free_blocks,
        n_published_blocks=stats.n_published_blocks,
        n_evictions=stats.n_evictions,
        n_failed_checks=stats.n_failed_checks,
        rss_bytes=rss,
        anonymous_bytes=anonymous,
        n_step_sequences=stats.n_step_sequences,
        n_paused=stats.n_paused,
        n_pins=stats.n_pins,
        n_pinned_bytes=stats.n_pinned_bytes,
        n_most_pinned_bytes=stats.n_most_pinned_bytes,
        n_pins_given_way=stats.n_pins_given_way,
        drafters={drafter.name: _drafter(drafter) for drafter in stats.drafters if drafter.n_drafts > 0},
        cache=tuple(wire.CacheUse(*use) for use in cache),
        tiers=_tiers(stats),
        n_waiting_tokens=stats.n_waiting_tokens,
        n_peer_tokens=0 if peers is None else peers.n_tokens,
        n_peer_failures=0 if peers is None else peers.n_failures,
    )


def _tiers(stats: DecoderStats) -> tuple[wire.TierUse, ...]:
    if stats.tiers is None:
        return ()
    hits = {"host": stats.n_host_hit_tokens, "disk": stats.n_disk_hit_tokens}
    found = {"host": stats.tiers.host, "disk": stats.tiers.disk}
    return tuple(
        wire.TierUse(
            name=name,
            budget_bytes=tier.budget_bytes,
            used_bytes=tier.used_bytes,
            hit_tokens=hits[name],
            written_bytes=tier.written_bytes,
            read_bytes=tier.read_bytes,
            n_dropped=tier.n_dropped,
            n_damaged=tier.n_damaged,
            n_evicted=tier.n_evicted,
        )
        for name, tier in found.items()
        if tier is not None
    )


def _drafter(drafter: DrafterStats) -> wire.DrafterFigures:
    n_positions = sum(1 for n in drafter.drafted_at if n > 0)
    return wire.DrafterFigures(
        n_drafts=drafter.n_drafts,
        n_drafted=drafter.n_drafted_tokens,
        n_accepted=drafter.n_accepted_tokens,
        drafted_at=drafter.drafted_at[:n_positions],
        accepted_at=drafter.accepted_at[:n_positions],
        seconds=drafter.seconds,
    )
