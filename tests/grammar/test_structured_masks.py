"""Token masks in the sampler and the decoder, without any grammar.

Oracles: the sampler's own distribution over logits that NumPy has set to -inf where the mask has no bit (checked without
masks in test_sampling.py), and greedy answers computed from the made-up model's documented hash.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from decoder_client import N_VOCAB, Client, greedy_without_eog, mask_of, params, prompt
from mask_rules import MaskThread, greedy_among
from quire._native.engine import MaskJob, Request, SamplingParams, VocabInfo
from quire._native.testing import Sampler
from quire.errors import RequestError, ShapeError


def allowed_after(tokens: Sequence[int]) -> list[int]:
    """Return the tokens of an arbitrary rule: a third of the vocabulary, chosen by the last token."""
    last = tokens[-1] if tokens else 0
    return [token for token in range(N_VOCAB) if (token + last) % 3 == 1]


@pytest.mark.parametrize("n_allowed", [1, 3, 40, 300, 500])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"repetition_penalty": 1.3, "logit_bias": [(7, 3.0), (401, -2.0)], "bad_token_ids": [3, 9]},
        {"allowed_token_ids": list(range(0, 500, 2))},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_a_mask_equals_logits_of_minus_infinity(n_allowed, options):
    rng = np.random.default_rng(n_allowed)
    row = rng.normal(0, 3, 500).astype(np.float32)
    allowed = np.sort(rng.choice(np.arange(4, 500, 2), min(n_allowed, 248), replace=False))
    if n_allowed == 500:
        allowed = np.arange(500)
    excluded = np.full(500, -np.inf, np.float32)
    excluded[allowed] = row[allowed]
    sampling = SamplingParams()
    for name, value in options.items():
        setattr(sampling, name, value)
    sampler = Sampler(sampling, VocabInfo(500, [], [b"x"] * 500))
    tokens = [3, 7, 9, 401, 7]
    expected = dict(zip(*sampler.distribution(excluded, tokens, 2), strict=True))
    found = dict(zip(*sampler.distribution(row, tokens, 2, mask_of(allowed, 500)), strict=True))
    assert set(found) == set(expected)
    for token, probability in expected.items():
        assert found[token] == pytest.approx(probability, rel=1e-5)
    drawn = sampler.sample(row, tokens, 2, mask_of(allowed, 500)).id
    assert drawn in found
    np.testing.assert_array_equal(row[allowed], excluded[allowed])  # the caller's row is unchanged


def test_masks_that_do_not_fit_or_allow_nothing():
    row = np.zeros(40, np.float32)
    sampler = Sampler(SamplingParams(), VocabInfo(40, [], [b"x"] * 40))
    with pytest.raises(ShapeError, match="1 words: expected 2"):
        sampler.sample(row, [], 0, np.ones(1, np.uint32))
    with pytest.raises(RequestError, match="all are excluded"):
        sampler.sample(row, [], 0, np.zeros(2, np.uint32))
    with pytest.raises(RequestError, match="all are excluded"):  # only bits beyond the vocabulary
        sampler.sample(row, [], 0, np.array([0, 0xFFFFFF00], np.uint32))
    with pytest.raises(TypeError):  # arrays of another type are not converted
        sampler.sample(row, [], 0, np.zeros(2, np.float64))  # type: ignore[arg-type]


def test_logprobs_cover_the_whole_vocabulary():
    row = np.random.default_rng(0).normal(0, 2, 64).astype(np.float32)
    sampling = SamplingParams()
    sampling.logprobs = 2
    drawn = Sampler(sampling, VocabInfo(64, [], [b"x"] * 64)).sample(row, [], 0, mask_of([5]))
    expected = row[5] - np.log(np.exp(row.astype(np.float64)).sum())
    assert (drawn.id, drawn.logprob) == (5, pytest.approx(expected, abs=1e-5))
    assert drawn.top[0][0] == int(np.argmax(row))


def test_min_tokens_yields_if_only_an_end_is_allowed():
    row = np.zeros(64, np.float32)
    sampling = SamplingParams()
    sampling.min_tokens = 10
    sampler = Sampler(sampling, VocabInfo(64, [62, 63], [b"x"] * 64))
    assert sampler.sample(row, [1], 1, mask_of([62])).id == 62
    assert sampler.sample(row, [1, 2], 1, mask_of([5, 62, 63])).id == 5


def test_every_token_is_drawn_through_its_mask():
    with Client(step_s=0.001) as client:
        thread = MaskThread(client, allowed_after)
        ids = [client.submit(prompt(6, i), params(max_tokens=20), grammar=True) for i in range(8)]
        free = client.submit(prompt(6, 9), params(max_tokens=20))
        client.run()
        for i, id_ in enumerate(ids):
            assert client.answer(id_).token_ids == greedy_among(allowed_after, prompt(6, i), 20)
        assert client.answer(free).token_ids == greedy_without_eog(prompt(6, 9), 20)
        stats = client.decoder.stats()
        assert (stats.n_masked_tokens, stats.n_generated_tokens) == (160, 180)
        client.expect_all_free()
    thread.join(5)
    assert not thread.is_alive()  # close() ended the wait


def test_each_choice_has_its_own_masks():
    with Client() as client:
        MaskThread(client, allowed_after)
        id_ = client.submit(prompt(6), params(max_tokens=12, n=4, temperature=1.0, seed=3), grammar=True)
        client.run()
        answers = [client.answer(id_, choice).token_ids for choice in range(4)]
    assert len({tuple(answer) for answer in answers}) == 4
    for answer in answers:
        assert all(token in allowed_after(answer[:i]) for i, token in enumerate(answer))


def test_only_the_constrained_sequence_waits():
    with Client(step_s=0.001) as client:
        slow = client.submit(prompt(6), params(max_tokens=3), grammar=True)
        other = client.submit(prompt(9), params(max_tokens=60))
        while client.answer(other).finish is None:  # no masks are computed yet
            client.poll()
        assert client.answer(slow).token_ids == []
        MaskThread(client, allowed_after)
        client.run()
        assert client.answer(slow).token_ids == greedy_among(allowed_after, prompt(6), 3)
        assert client.decoder.stats().n_late_masks >= 1


def test_preempted_sequences_continue_with_their_masks():
    """In a pool that is too small for all, masks still belong to their tokens."""
    with Client(n_blocks=17, step_s=0.0005) as client:
        MaskThread(client, allowed_after)
        ids = [client.submit(prompt(8, i), params(max_tokens=24), grammar=True) for i in range(6)]
        client.run()
        assert client.decoder.stats().n_preemptions > 0
        for i, id_ in enumerate(ids):
            assert client.answer(id_).token_ids == greedy_among(allowed_after, prompt(8, i), 24)


def test_a_mask_that_allows_nothing_fails_its_request_alone():
    with Client(step_s=0.001) as client:
        bad = client.submit(prompt(6), params(n=2), grammar=True)
        other = client.submit(prompt(9), params(max_tokens=20))
        for _ in range(2):
            job = client.decoder.wait_mask_job(10.0)
            assert isinstance(job, MaskJob)
            client.decoder.provide_mask(bad, job.choice, 0, mask_of([]))
        client.run()
        error = client.answer(bad).error
        assert error is not None
        assert (error.error_kind, "all are excluded" in error.error) == ("RequestError", True)
        assert client.answer(other).token_ids == greedy_without_eog(prompt(9), 20)
        client.expect_all_free()


def test_masks_that_were_not_requested():
    with Client() as client:
        id_ = client.submit(prompt(6), params(max_tokens=2), grammar=True)
        job = client.decoder.wait_mask_job(10.0)
        assert job is not None
        assert (job.request_id, job.choice, job.position, job.tokens, job.n_drafted) == (id_, 0, 0, [], 0)
        for choice, position in [(0, 1), (1, 0), (-1, 0)]:
            with pytest.raises(RequestError, match="mask"):
                client.decoder.provide_mask(id_, choice, position, mask_of([1]))
        with pytest.raises(ShapeError, match="words: expected 2"):
            client.decoder.provide_mask(id_, 0, 0, np.ones(3, np.uint32))
        client.decoder.cancel(id_)
        client.run()
        client.decoder.provide_mask(id_, 0, 0, mask_of([1]))  # too late, no effect
        assert client.decoder.wait_mask_job(0.0) is None
        client.expect_all_free()


def test_cancelled_requests_leave_no_jobs():
    with Client() as client:
        ids = [client.submit(prompt(6, i), params(n=2), grammar=True) for i in range(5)]
        for id_ in ids:
            client.decoder.cancel(id_)
        client.run()
        assert client.decoder.wait_mask_job(0.0) is None


def test_processed_logits_are_masked_too():
    with Client() as client:
        MaskThread(client, allowed_after)
        id_ = client.submit(prompt(6), params(max_tokens=4), grammar=True, external_logits=True)
        while any(client.open.values()):
            for event in client.poll():
                if event.kind == "logits":
                    assert event.logits is not None
                    client.decoder.provide_logits(id_, 0, -np.array(event.logits))
        answer = client.answer(id_).token_ids
    assert answer == greedy_among(allowed_after, prompt(6), 4, sign=-1)


def test_prompt_logits_cannot_be_masked():
    with Client() as client, pytest.raises(RequestError, match=r"grammar .*prompt_logits"):
        client.decoder.submit(Request(prompt(6), None, prompt_logits=True, grammar=True))
