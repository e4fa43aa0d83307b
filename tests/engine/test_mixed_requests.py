"""Bans, forks, forms, guidance, drafts and cancellations in one batch.

Oracle: each request alone.
"""

from __future__ import annotations

from mixed_requests import run


def test_requests_of_all_kinds_do_not_disturb_each_other() -> None:
    figures = run(40, n_prompts=2)
    assert figures.n_different == 0
    assert figures.n_cancelled > 0
    assert (figures.n_requests_left, figures.n_failed_checks) == (0, 0)
    assert figures.n_free_blocks[0] == figures.n_free_blocks[1]
