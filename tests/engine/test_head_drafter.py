"""A head that predicts later tokens, in the decoder over a made-up model (decoder_client.py).

Oracle: the made-up head knows the model's next row exactly, from the features of the row before and the token (see
native/testing/fake_executor.h).  So every draft must be right, to any depth, wherever the features that it read were those
of the right rows; and answers are those without it.
"""

from __future__ import annotations

import pytest
from decoder_client import N_VOCAB, Client, comparable, mixed_requests, params, prompt
from quire._native.engine import Decoder, DecoderConfig, Drafter, HeadDrafter, LookupDrafter, VocabInfo
from quire._native.testing import FakeExecutor
from quire.errors import ShapeError

ALWAYS = {"speculation": "mtp", "draft_max": 5, "draft_min": 5}  # regardless of cost


def head(n_ctx: int = 256, **options: object) -> HeadDrafter:
    fake = FakeExecutor(n_vocab=N_VOCAB, block_tokens=4, reads_features=True, **{"n_blocks": 2000, **options})  # type: ignore[arg-type]
    return HeadDrafter(fake, n_ctx=n_ctx)


def opened(drafters: list[Drafter] | None = None, config: dict[str, object] | None = None, **options: object) -> Client:
    return Client(
        shows_features=True,
        drafters=[head()] if drafters is None else drafters,
        config={**ALWAYS, **(config or {})},
        **options,
    )


def expect_all_right(client: Client, n_sequences: int, depth: int = 5) -> None:
    """Expect every draft to be right, except tokens drafted beyond the end of an answer."""
    (stats,) = [each for each in client.decoder.stats().drafters if each.name == "mtp"]
    assert stats.failure == ""
    assert stats.n_drafted_tokens > 60
    assert stats.n_drafted_tokens - stats.n_accepted_tokens <= depth * n_sequences


# Tokens that end a generation stay allowed: the head does not know which requests ban them.
@pytest.mark.parametrize("max_rows", [256, 16])
@pytest.mark.parametrize("n_at_once", [1, 8])
def test_drafts_are_right_to_any_depth(n_at_once: int, max_rows: int) -> None:
    prompts = [prompt(5 + 7 * i, seed=i) for i in range(16)]
    sampling = params(max_tokens=40, ignore_eos=False)
    with Client(n_blocks=900) as client:
        ids = [client.submit(tokens, sampling) for tokens in prompts]
        client.run()
        plain = [comparable(client.answer(id_)) for id_ in ids]
    with opened(n_blocks=900, max_sequences=n_at_once, max_rows=max_rows, max_logit_rows=16) as client:
        ids = [client.submit(tokens, sampling) for tokens in prompts]
        client.run()
        assert [comparable(client.answer(id_)) for id_ in ids] == plain
        expect_all_right(client, len(prompts))
        n_tokens = sum(len(client.answer(id_).token_ids) for id_ in ids)
        assert client.decoder.stats().drafters[0].n_accepted_tokens > 0.4 * n_tokens
        client.expect_all_free()


def test_a_prefix_that_is_found_has_no_features_and_waits_for_some() -> None:
    text, sampling = prompt(40), params(max_tokens=30, ignore_eos=False)
    with opened() as client:
        answers = []
        for tail in ([], [1, 2, 3], [4], [1, 2, 3, 5, 6, 7]):
            id_ = client.submit([*text, *tail], sampling)
            client.run()
            answers.append(client.answer(id_))
            assert answers[-1].finish is not None
            assert (answers[-1].finish.n_cached_tokens > 0) == bool(tail)
        expect_all_right(client, len(answers))
    with Client() as client:
        ids = [client.submit([*text, *tail], sampling) for tail in ([], [1, 2, 3], [4], [1, 2, 3, 5, 6, 7])]
        client.run()
        assert [comparable(client.answer(id_)) for id_ in ids] == [comparable(answer) for answer in answers]


def test_long_texts_begin_where_features_are_kept() -> None:
    """At most 512 rows of features per sequence are kept until the head reads them."""
    text, sampling = prompt(900), params(max_tokens=60, ignore_eos=False)
    with opened(n_ctx=1200, n_blocks=600, drafters=[head(n_ctx=1200)]) as client:
        ids = [client.submit(text[i:], sampling) for i in range(4)]
        client.run()
        expect_all_right(client, len(ids))
    # The head's context ends before the text.
    with opened(n_ctx=1200, n_blocks=600, drafters=[head(n_ctx=300)]) as client:
        ids = [client.submit(text[i:], sampling) for i in range(4)]
        client.run()
        (stats,) = client.decoder.stats().drafters
        assert stats.failure == ""
        assert stats.n_drafted_tokens - stats.n_accepted_tokens <= 5 * len(ids)


# The model's cache preempts and shares. The head's own cache preempts, or must return to rows outside its window.
@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({}, {}),
        ({}, {"n_blocks": 23}),
        ({}, {"layers": [(7, 0)]}),
        ({}, {"max_rows": 16, "max_logit_rows": 8, "max_sequences": 8}),
        ({"layers": [(0, 0), (9, 0)], "n_state": 6}, {}),  # the head's features do not determine the state
    ],
    ids=["plenty", "small-cache", "window", "small-steps", "state"],
)
@pytest.mark.parametrize("chained", [False, True])
def test_answers_do_not_depend_on_a_head(options: dict[str, object], own: dict[str, object], chained: bool) -> None:
    requests = mixed_requests()
    with Client(n_blocks=900, **options) as client:
        ids = [client.submit(tokens, sampling) for tokens, sampling in requests]
        client.run()
        plain = [
            [comparable(client.answer(id_, i)) for i in range(s.n)] for id_, (_, s) in zip(ids, requests, strict=True)
        ]
    drafters: list[Drafter] = [*[LookupDrafter()] * chained, head(**own)]
    config = {"speculation": "auto"}
    with opened(drafters, config, n_blocks=60, max_sequences=8, **options) as client:
        ids = [client.submit(tokens, sampling) for tokens, sampling in requests]
        client.run()
        for id_, expected in zip(ids, plain, strict=True):
            assert [comparable(client.answer(id_, choice)) for choice in range(len(expected))] == expected
        stats = client.decoder.stats()
        assert (stats.drafters[-1].name, stats.drafters[-1].failure) == ("mtp", "")
        assert stats.drafters[-1].n_drafted_tokens > 20
        assert options or stats.drafters[-1].n_accepted_tokens > 5
        assert stats.n_preemptions > 0
        client.expect_all_free()


def test_greedy_drafts_are_right_while_sequences_are_preempted_and_cancelled() -> None:
    prompts = [prompt(20 + 3 * i, seed=i) for i in range(12)]
    sampling = params(max_tokens=60, ignore_eos=False)
    with opened(n_blocks=60, max_sequences=8) as client:
        cancelled = [client.submit(prompt(30, seed=40 + i), sampling) for i in range(4)]
        ids = [client.submit(tokens, sampling) for tokens in prompts]
        client.poll()
        for id_ in cancelled:
            client.decoder.cancel(id_)
        client.run()
        assert all(client.answer(id_).finish for id_ in ids)
        assert client.decoder.stats().n_preemptions > 0
        expect_all_right(client, len(cancelled) + len(prompts))
        client.expect_all_free()


def test_a_request_can_opt_out_of_the_head() -> None:
    with opened(config={"speculation": "off"}) as client:
        off = client.submit(prompt(12), params(max_tokens=30, ignore_eos=False))
        on = client.submit(prompt(12), params(max_tokens=30, ignore_eos=False), speculation="mtp")
        client.run()
        assert client.answer(off).token_ids == client.answer(on).token_ids
        finished = [client.answer(id_).finish for id_ in (off, on)]
        assert [finish is not None and finish.n_drafted_tokens > 0 for finish in finished] == [False, True]


def test_a_head_of_fewer_tokens_proposes_the_models() -> None:
    """The head confuses half of the tokens, so it is right about the other half only."""
    half = N_VOCAB // 2
    tokens = [*range(half), *range(half + 1, N_VOCAB), half]
    fake = FakeExecutor(n_vocab=N_VOCAB, block_tokens=4, n_blocks=2000, reads_features=True)
    prompts, sampling = [prompt(7 + i, seed=i) for i in range(12)], params(max_tokens=40, ignore_eos=False)
    config = {"speculation": "eagle", "draft_max": 1, "draft_min": 1}
    with opened([HeadDrafter(fake, n_ctx=256, name="eagle", tokens=tokens)], config) as client:
        ids = [client.submit(text, sampling) for text in prompts]
        client.run()
        (stats,) = client.decoder.stats().drafters
        answers = [client.answer(id_).token_ids for id_ in ids]
    with Client() as client:
        ids = [client.submit(text, sampling) for text in prompts]
        client.run()
        assert [client.answer(id_).token_ids for id_ in ids] == answers
    assert (stats.name, stats.failure) == ("eagle", "")
    # A draft with a known token is right; the token after it is drawn without a draft.
    assert 0.25 < stats.n_accepted_tokens / stats.n_drafted_tokens < 0.75
    drawn = [token for answer in answers for token in answer]
    assert stats.n_accepted_tokens <= sum(token < half for token in drawn)
    assert stats.n_drafted_tokens - stats.n_accepted_tokens <= sum(token >= half for token in drawn) + len(prompts)


def test_features_must_fit() -> None:
    vocab = VocabInfo(N_VOCAB, [], [b""] * N_VOCAB)
    with pytest.raises(ShapeError, match=r"mtp .*4 features.* 0"):
        Decoder(FakeExecutor(n_vocab=N_VOCAB), vocab, DecoderConfig(n_ctx=64), [head()])
    with pytest.raises(ShapeError, match=r"features .*\b0\b"):
        HeadDrafter(FakeExecutor(n_vocab=N_VOCAB), n_ctx=64)
    with pytest.raises(ShapeError, match=r"64 tokens.*\b3\b"):
        HeadDrafter(FakeExecutor(n_vocab=N_VOCAB, reads_features=True), n_ctx=64, tokens=[1, 2, 3])
