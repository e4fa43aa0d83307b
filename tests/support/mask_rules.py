"""Answers to a decoder's mask jobs by a rule, and greedy answers under the rule.

A rule tells which tokens may follow an answer.  The oracle of greedy answers is the fake model's documented hash
(decoder_client.py).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from decoder_client import EOG, Client, logits_after, mask_of

__all__ = ["MaskThread", "Rule", "greedy_among"]

Rule = Callable[[Sequence[int]], Sequence[int]]


def greedy_among(rule: Rule, context: Sequence[int], n: int, sign: int = 1) -> list[int]:
    """Return an answer of ``n`` tokens that does not end earlier.  ``sign`` -1 negates the logits."""
    found: list[int] = []
    for _ in range(n):
        row = sign * logits_after([*context, *found])
        allowed = [token for token in rule(found) if token != EOG]
        found.append(max(allowed, key=lambda token: (row[token], -token)))
    return found


class MaskThread(threading.Thread):
    """Answers all jobs, and continues as long as the rule leaves no choice, for at most ``most`` tokens.

    It waits ``pause_s`` before each mask.  Of the masks along a draft, every ``declines``-th is reported as missing.
    """

    def __init__(self, client: Client, rule: Rule, most: int = 0, pause_s: float = 0.0, declines: int = 0) -> None:
        super().__init__(daemon=True)
        self.client, self.rule, self.most, self.pause_s, self.declines = client, rule, most, pause_s, declines
        self.generated: dict[tuple[int, int], list[int]] = {}
        self.n_drafted = 0  # masks along a draft
        self.start()

    def run(self) -> None:
        decoder = self.client.decoder
        while (job := decoder.wait_mask_job(60.0)) is not None:
            tokens = self.generated.setdefault((job.request_id, job.choice), [])
            assert len(tokens) >= job.position - len(job.tokens)
            tokens[job.position - len(job.tokens) :] = job.tokens
            is_drafted = job.n_drafted > 0
            while True:
                assert not tokens or tokens[-1] in self.rule(tokens[:-1])
                self.n_drafted += is_drafted
                if is_drafted and self.declines and self.n_drafted % self.declines == 0:
                    decoder.decline_mask(job.request_id, job.choice)
                    break
                position, forced = len(tokens), list[int]()
                while len(forced) < self.most and len(allowed := self.rule(tokens)) == 1:
                    forced += allowed
                    tokens += allowed
                time.sleep(self.pause_s * random.random())
                mask = mask_of(self.rule(tokens))
                token = decoder.provide_mask(job.request_id, job.choice, position, mask, forced)
                if token is None:
                    break
                tokens.append(token)
                is_drafted = True
