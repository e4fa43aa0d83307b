"""Images whose rows attend to each other: a step computes all of an image's rows that are not cached.

Oracle: the made-up model (decoder_client.py) hashes what each row sees; a row that saw too little of its image, or more
than that, would have other logits.  A step that divides an image is an error of the model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from decoder_client import FULL, N_VOCAB, Client, Layers, hash_of, log_softmax, mix, params, prompt
from quire._native.engine import Request
from quire._native.testing import CachePool, PoolGroup, Scheduler, SchedulerConfig
from quire.errors import CapacityError, ShapeError

U64 = (1 << 64) - 1
WINDOW = Layers(((0, 0), (9, 0)))
Media = list[tuple[int, bytes, Any]]


def image(begin: int, n: int, seed: int) -> tuple[int, bytes, Any]:
    rows = np.random.default_rng([seed, n]).integers(0, 50, (n, 2)).astype(np.float32)
    return begin, f"image {seed} of {n}".encode(), rows


def logits_of(tokens: Sequence[int], media: Media, position: int, layers: Layers) -> np.ndarray:
    """The logits after ``position``: each layer sees from its window's start to the position, or its image's end."""
    seen, last = list(tokens), position
    for begin, _, rows in media:
        seen[begin : begin + len(rows)] = (N_VOCAB + rows[:, 0]).astype(int).tolist()
        if begin <= position < begin + len(rows):
            last = begin + len(rows) - 1
    hashes = [hash_of(seen[layers.first_seen(group, position) : last + 1]) for group in sorted(layers.groups)]
    h = hashes[0] if len(hashes) == 1 else hash_of(hashes)
    return np.array([(mix((h + v) & U64) >> 40) / 2**21 for v in range(N_VOCAB)], dtype=np.float32)


def requests(n: int) -> list[tuple[list[int], Media]]:
    rng = random.Random(5)
    made = []
    for i in range(n):
        tokens, media = prompt(rng.randrange(1, 12), seed=i % 3), []
        for _ in range(rng.randrange(4)):
            size = rng.choice([1, 4, 9, 17])
            media.append(image(len(tokens), size, rng.randrange(3)))
            tokens = [*tokens, *[7] * size, *prompt(rng.randrange(6), seed=i)]
        made.append(([*tokens, 1], media))
    return made


@pytest.mark.parametrize("layers", [FULL, WINDOW], ids=["full", "window"])
@pytest.mark.parametrize(("max_rows", "n_blocks"), [(256, 400), (24, 400), (20, 40)])
def test_every_row_sees_its_whole_image(layers: Layers, max_rows: int, n_blocks: int) -> None:
    options = {**layers.options(), "media_width": 2, "max_rows": max_rows, "max_logit_rows": max_rows}
    with Client(**options, n_blocks=n_blocks, config={"max_running": 4}) as client:
        for _ in range(2):  # the second time over the cache, whose hits end within images, too
            work = requests(24)
            ids = [client.submit(t, params(max_tokens=6, prompt_logprobs=1), media=m) for t, m in work]
            client.run()
            for id_, (tokens, media) in zip(ids, work, strict=True):
                answer = client.answer(id_)
                assert answer.error is None, answer.error
                rows = [log_softmax(logits_of(tokens, media, i, layers)) for i in range(len(tokens) - 1)]
                wanted = [row[token] for row, token in zip(rows, tokens[1:], strict=True)]
                found = [token.logprob for token in answer.prompt_logprobs][-len(wanted) :]
                np.testing.assert_allclose(found, wanted, atol=1e-5)
                for token in answer.token_ids:
                    row = logits_of(tokens, media, len(tokens) - 1, layers)
                    row[-1] = -np.inf
                    assert token == int(np.argmax(row))
                    tokens.append(token)
        client.expect_all_free()


def test_the_cache_ends_within_an_image() -> None:
    tokens, media = [*prompt(6), *[7] * 17, 3], [image(6, 17, seed=1)]
    with Client(media_width=2) as client:
        client.submit(tokens, params(), media=media)
        client.run()
        for other, cached in ((media, 20), ([image(6, 17, seed=2)], 4)):
            id_ = client.submit([*tokens[:-1], 9], params(max_tokens=1), media=other)
            client.run()
            finish = client.answer(id_).finish
            assert finish is not None
            assert finish.n_cached_tokens == cached
            row = logits_of([*tokens[:-1], 9], other, len(tokens) - 1, FULL)
            row[-1] = -np.inf
            assert client.answer(id_).token_ids == [int(np.argmax(row))]


def test_an_image_too_large_for_a_step_is_refused() -> None:
    with Client(media_width=2, max_rows=24, max_logit_rows=20, config={"max_running": 4}) as client:
        tokens, media = [*[7] * 26, 1], [image(0, 26, seed=1)]
        with pytest.raises(CapacityError, match=r"an image has 26 tokens.*at most 24 fit"):
            client.submit(tokens, params(), media=media)
        with pytest.raises(CapacityError, match=r"an image has 21 tokens.*at most 20 fit"):
            client.decoder.submit(Request([*[7] * 21, 1], prompt_logits=True, media=[image(0, 21, seed=1)]))
        with pytest.raises(ShapeError, match=r"is_causal has 2 values for 1"):
            Request(tokens, media=media, is_causal=[True, True])
        client.submit(tokens, params(), media=media, is_causal=[True])  # may be cut
        client.submit([*[7] * 24, 1], params(), media=[image(0, 24, seed=1)])
        client.run()
        client.expect_all_free()


# The scheduler


def scheduler(bidirectional: bool = True, **config: int) -> Scheduler:
    pool = CachePool([PoolGroup(100, bidirectional_media=bidirectional)], block_tokens=4)
    return Scheduler(SchedulerConfig(**{"max_step_tokens": 32, "max_running": 4, **config}), pool)  # type: ignore[arg-type]


def items(plan: Any) -> list[tuple[int, int]]:
    return [(item.first, item.n_tokens) for item in plan.items]


def steps(made: Scheduler, n: int) -> list[tuple[int, int]]:
    found = []
    for _ in range(n):
        plan = made.plan(0.0)
        found += items(plan)
        made.commit(plan)
    return found


def test_chunks_end_before_an_image() -> None:
    spans = [(10, 25, True), (36, 3, True), (60, 29, True)]
    made = scheduler()
    made.submit(prompt(90), max_tokens=91, now_s=0.0, media=spans)
    assert steps(made, 6) == [(0, 10), (10, 32), (42, 18), (60, 30)]
    for spans, bidirectional in (([(10, 25, False)], True), ([(10, 25, True)], False)):
        made = scheduler(bidirectional)
        made.submit(prompt(50), max_tokens=51, now_s=0.0, media=spans)
        assert steps(made, 2) == [(0, 32), (32, 18)]


def test_an_image_may_exceed_a_steps_time() -> None:
    made = scheduler()
    made.submit(prompt(1), max_tokens=9, now_s=0.0)
    first = made.plan(0.0)
    made.commit(first)
    made.append(first.items[0].sequence_id, 1)
    made.submit(prompt(40), max_tokens=41, now_s=1.0, media=[(2, 28, True)])
    found, visible = [], []
    for _ in range(4):
        plan = made.plan_within(0.0, 4)
        assert plan.n_tokens <= 32
        batch = made.batch(plan)
        last = batch["groups"][0]["last_visible"]
        assert all(token == 0 for token, end in zip(batch["tokens"], last, strict=False) if end == 29)
        found.append(items(plan))
        visible.append(last)
        made.commit(plan)
        for item in plan.items:
            if not made.sequence(item.sequence_id).has_work:
                made.append(item.sequence_id, 1)
    assert found[:2] == [[(1, 1), (0, 2)], [(2, 1), (2, 28)]]
    assert found[2] == [(3, 1), (30, 3)]
    assert visible[:3] == [[], [2, *[29] * 28], []]


def test_an_image_that_found_no_room_comes_first_in_the_next_step() -> None:
    """Others draft as much as there is room for, and wait for no more than one step in a row."""
    made = scheduler()
    others = [made.submit(prompt(3), max_tokens=200, now_s=0.0)[0] for _ in range(3)]
    steps(made, 1)
    images = [(0, 31, True), (31, 32, True), (64, 32, True)]
    whole, found = 0, list[dict[int, int]]()
    for n in range(12):
        for id_ in others:
            if not made.sequence(id_).has_work:
                made.append(id_, 1)
            while made.sequence(id_).drafted and not made.sequence(id_).has_work:
                made.append(id_, made.sequence(id_).drafted[0])
            made.draft(id_, [2] * min(9, made.draft_limit(id_)))
        if n == 1:
            whole = made.submit([7] * 97, max_tokens=98, now_s=0.0, media=images)[0]
        plan = made.plan(0.0)
        assert plan.n_tokens <= 32
        found.append({item.sequence_id: item.n_tokens for item in plan.items})
        made.commit(plan)
    assert [step.get(whole) for step in found[1:9]] == [None, 31, None, 32, 1, None, 32, 1]
    assert all(found[n].keys() >= set(others) for n in (0, 1, 3, 5, 6, 8))
