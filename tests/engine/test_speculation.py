"""Speculation in the decoder over a made-up model (decoder_client.py).

Oracles: answers known from the model's documented hash, the same requests without drafts, and, for drawn tokens, the
distribution that the sampler reports (which test_sampling.py checks).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from decoder_client import (
    N_VOCAB,
    TEXT,
    Client,
    Layers,
    comparable,
    greedy_without_eog,
    mixed_requests,
    params,
    prompt,
)
from mask_rules import MaskThread, greedy_among
from quire._native.engine import (
    CacheTiersConfig,
    Drafter,
    HeadDrafter,
    LookupDrafter,
    ModelDrafter,
    SamplingParams,
    VocabInfo,
)
from quire._native.testing import AnswerCursor, AnswerStore, FakeExecutor, Sampler, ScriptedDrafter, SuffixAutomaton
from quire.errors import RequestError, UnsupportedError
from test_sampling import chi_square, chi_square_limit

ALWAYS = {"speculation": "auto", "draft_max": 5, "draft_min": 5}  # regardless of cost
LAYERS = {
    "full": Layers(),
    "window": Layers(((0, 0), (9, 0))),
    "state": Layers(((0, 0),), has_state=True),
    "window-chunk-state": Layers(((0, 16), (10, 0)), has_state=True),
}


def scripted(scripts: Sequence[Sequence[int]], agreement: float) -> ScriptedDrafter:
    return ScriptedDrafter(scripts, agreement=agreement, n_vocab=N_VOCAB)


def repeating(n: int, seed: int, period: int = 9) -> list[int]:
    return (prompt(period, seed=seed) * n)[:n]


# Lookup


@pytest.mark.parametrize("n_letters", [1, 2, 4])
def test_the_automaton_finds_the_longest_end_that_occurred_before(n_letters: int) -> None:
    rng = random.Random(n_letters)
    automaton, text = SuffixAutomaton(), list[int]()
    for _ in range(300):
        text.append(rng.randrange(n_letters))
        automaton.append(text[-1])
        length, after = automaton.match
        ends = [n for n in range(len(text)) if text[: len(text) - 1] and n and text[-n:] in windows(text[:-1], n)]
        assert length == max(ends, default=0)
        if length:
            assert after < len(text)
            assert text[after - length : after] == text[len(text) - length :]
    assert automaton.n_states <= 2 * len(text)


def windows(text: list[int], n: int) -> list[list[int]]:
    return [text[i : i + n] for i in range(len(text) - n + 1)]


def test_lookup_copies_what_the_prompt_has() -> None:
    answer = greedy_without_eog(prompt(12), 40)
    with Client(drafters=[LookupDrafter()], config=ALWAYS) as client:
        # The prompt contains the answer, so that lookup finds it after its first tokens.
        text = [*answer, *prompt(12)]
        plain = greedy_without_eog(text, 40)
        id_ = client.submit(text, params(max_tokens=40))
        predicted = client.submit(text, params(max_tokens=40), prediction=plain)
        client.run()
        assert client.answer(id_).token_ids == client.answer(predicted).token_ids == plain
        finish = client.answer(predicted).finish
        assert finish is not None
        assert finish.n_accepted_tokens >= 30  # at least five of six of the 39 tokens after the first are drafted
        (stats,) = client.decoder.stats().drafters
        assert stats.name == "lookup"
        assert stats.n_accepted_tokens == sum(stats.accepted_at) <= stats.n_drafted_tokens == sum(stats.drafted_at)


def test_a_prediction_that_goes_wrong_is_taken_up_again() -> None:
    text = prompt(12)
    plain = greedy_without_eog(text, 40)
    wrong = [*plain[:10], 1, 2, *plain[12:]]
    with Client(drafters=[LookupDrafter()]) as client:  # lookup is off by default, except for predictions
        id_ = client.submit(text, params(max_tokens=40), prediction=wrong)
        off = client.submit(text, params(max_tokens=40), prediction=wrong, speculation="off")
        client.run()
        assert client.answer(id_).token_ids == client.answer(off).token_ids == plain
        finish = client.answer(off).finish
        assert finish is not None
        assert finish.n_drafted_tokens == 0
    with Client(drafters=[LookupDrafter()], config={"draft_min": 4}) as client:
        id_ = client.submit(text, params(max_tokens=40), prediction=wrong)
        client.run()
        finish = client.answer(id_).finish
        assert finish is not None
        assert client.answer(id_).token_ids == plain
        assert finish.n_accepted_tokens > 20


# Earlier answers


def longest_end(text: Sequence[int], answers: Sequence[Sequence[int]]) -> int:
    found = 0
    for n in range(1, len(text) + 1):
        if any(list(answer[i : i + n]) == list(text[-n:]) for answer in answers for i in range(len(answer) - n + 1)):
            found = n
    return found


@pytest.mark.parametrize("n_letters", [2, 5])
def test_the_store_finds_what_followed_in_earlier_answers(n_letters: int) -> None:
    rng = random.Random(n_letters)
    store = AnswerStore(most_tokens=1000)
    answers: dict[bytes, list[list[int]]] = {b"a": [], b"b": []}
    for _ in range(8):
        for salt, known in answers.items():
            known.append([rng.randrange(n_letters) + 10 * (salt == b"b") for _ in range(rng.randrange(1, 30))])
            store.add(salt, known[-1])
        # The text is read token by token; the store does not change.
        salt = rng.choice([b"a", b"b"])
        text, cursor = list[int](), AnswerCursor()
        for _ in range(40):
            text.append(rng.randrange(n_letters) + 10 * (rng.random() < 0.3))
            length, following = store.find(salt, text, cursor)
            assert length == longest_end(text, answers[salt])
            joined = [token for answer in answers[salt] for token in (*answer, -1)]
            if length:
                at = len(joined) - len(following)
                assert joined[at:] == following
                assert joined[at - length : at] == text[len(text) - length :]
    assert store.find(b"c", text, AnswerCursor()) == (0, [])  # answers of other salts are not found


def test_the_store_is_bounded_and_cursors_outlive_what_goes() -> None:
    rng = random.Random(1)
    store, cursor, text = AnswerStore(most_tokens=400), AnswerCursor(), [0]
    for i in range(300):
        answer = [rng.randrange(4) for _ in range(rng.randrange(1, 250))]
        store.add(b"often", answer)
        store.add(str(i % 7).encode(), answer[:20])
        assert store.n_tokens <= 400
        text += answer[-3:]
        # Text read before an answer came is not searched again, so a match may be shorter than the longest one.
        length, following = store.find(b"often", text, cursor)
        assert 0 <= length <= len(text)
        fresh, _ = store.find(b"often", text[-30:], AnswerCursor())
        assert min(length, 30) <= fresh
        assert not length or following
    kept = [i for i in range(7) if store.find(str(i).encode(), [*answer[:20]], AnswerCursor())[0]]
    assert len(kept) < 7  # the least recently used ones are evicted


def test_lookup_learns_from_answers_of_the_same_salt_alone() -> None:
    text = prompt(12)
    plain = greedy_without_eog(text, 40)
    config = {"speculation": "lookup", "draft_max": 5, "draft_min": 5}

    def drafted(client: Client, salt: bytes) -> int:
        id_ = client.submit(text, params(max_tokens=40), salt=salt)
        client.run()
        assert client.answer(id_).token_ids == plain
        finish = client.answer(id_).finish
        assert finish is not None
        return finish.n_accepted_tokens

    with Client(drafters=[LookupDrafter()], config=config) as client:
        alone = drafted(client, b"one")
        assert drafted(client, b"other") == alone  # the answer of another salt does not help
        assert drafted(client, b"one") >= 28  # five of six of the 37 tokens after the first two are drafted
        assert drafted(client, b"") == alone


# Exactness


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("agreement", [0.0, 0.7, 1.0])
def test_answers_do_not_depend_on_drafts(name: str, agreement: float) -> None:
    requests = mixed_requests()
    options = {**LAYERS[name].options(), "n_states": 80}
    with Client(n_blocks=900, **options) as client:
        ids = [client.submit(tokens, sampling) for tokens, sampling in requests]
        client.run()
        plain = [[client.answer(id_, i) for i in range(s.n)] for id_, (_, s) in zip(ids, requests, strict=True)]
    scripts = [tokens + a.token_ids for (tokens, _), found in zip(requests, plain, strict=True) for a in found]
    drafters: list[list[Drafter]] = [[scripted(scripts, agreement)], [LookupDrafter(), scripted(scripts, agreement)]]
    for chain in drafters:
        tight = {"n_blocks": 41, "max_rows": 64, "max_logit_rows": 24, "max_sequences": 16, "n_states": 34}
        with Client(**{**options, **tight}, drafters=chain, config=ALWAYS) as client:
            ids = [client.submit(tokens, sampling, priority=i % 3) for i, (tokens, sampling) in enumerate(requests)]
            client.run()
            for id_, expected in zip(ids, plain, strict=True):
                found = [client.answer(id_, choice) for choice in range(len(expected))]
                assert [comparable(a) for a in found] == [comparable(a) for a in expected]
            stats = client.decoder.stats()
            assert stats.n_preemptions > 0 or name == "window-chunk-state"
            n_drafted = sum(drafter.n_drafted_tokens for drafter in stats.drafters)
            n_accepted = sum(drafter.n_accepted_tokens for drafter in stats.drafters)
            assert n_drafted > 200
            assert (n_accepted < n_drafted / 4) if agreement == 0 else (n_accepted > n_drafted / 3)
            client.expect_all_free()


@pytest.mark.parametrize("n_at_once", [1, 8, 32])
def test_greedy_answers_beside_cancelled_requests(n_at_once: int) -> None:
    prompts = [repeating(10 + i % 30, seed=i % 20) for i in range(50)]
    expected = [greedy_without_eog(tokens, 20) for tokens in prompts]
    scripts = [tokens + answer for tokens, answer in zip(prompts, expected, strict=True)]
    config = {**ALWAYS, "max_running": n_at_once, "kept_back_blocks": 0}
    with Client(
        n_blocks=15 + 6 * n_at_once, drafters=[LookupDrafter(), scripted(scripts, 0.8)], config=config
    ) as client:
        ids = [client.submit(tokens, params(max_tokens=20)) for tokens in prompts]
        doomed = [client.submit(tokens, params(max_tokens=60)) for tokens in prompts[:10]]
        for id_ in doomed:
            client.poll(0.01)
            client.decoder.cancel(id_)
        client.run()
        for id_, answer in zip(ids, expected, strict=True):
            assert client.answer(id_).token_ids == answer
        client.expect_all_free()


def small_head(n_ctx: int, n_known: int, tokens: Sequence[int]) -> HeadDrafter:
    fake = FakeExecutor(n_vocab=n_known, block_tokens=4, n_blocks=2000, reads_features=True)
    return HeadDrafter(fake, n_ctx=n_ctx, name="eagle", tokens=tokens)


# A head proposes the likeliest token; a head of few tokens proposes one that is hardly ever the likeliest.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scripted", "head", "head of few tokens"])
def test_drawn_tokens_are_distributed_as_without_drafts(kind: str) -> None:
    # 48 000 draws of pairs: the first token is drawn from the prompt's row, the second from a row of a draft or, where the
    # draft was wrong, from one of its own.
    n_vocab, n_choices, n_requests = 12, 16, 3000
    text = [1, 2, 3]
    fake = {"n_vocab": n_vocab, "n_blocks": 2000, "max_rows": 512, "max_logit_rows": 512, "shows_features": True}

    def rows(tokens: list[int]) -> np.ndarray:
        """Return the probabilities of the next token by the model's logits (no eog: 12 ids, none of them ends)."""
        logits = logits_of(tokens, n_vocab)
        sampler = Sampler(SamplingParams(), VocabInfo(n_vocab, [], [b"x"] * n_vocab))
        ids, probabilities = sampler.distribution(logits, tokens, len(text))
        result = np.zeros(n_vocab)
        result[ids] = probabilities
        return result

    best = [int(np.argmax(rows([*text, first]))) for first in range(n_vocab)]
    scripts = [[*text, first, best[first], 0, 0] for first in range(n_vocab)]
    drafter: Drafter = ScriptedDrafter(scripts, agreement=0.8, n_vocab=n_vocab)
    if kind != "scripted":
        drafter = small_head(64, *((n_vocab, ()) if kind == "head" else (5, (7, 3, 11, 0, 8))))
    pairs = np.zeros((n_vocab, n_vocab), np.int64)
    with SmallClient(n_vocab, fake, drafter) as client:
        sampling = params(temperature=1.0, max_tokens=3, n=n_choices, ignore_eos=False)
        for first in range(0, n_requests, 250):
            ids = [client.submit(text, sampling) for _ in range(first, first + 250)]
            client.run()
            for id_ in ids:
                for choice in range(n_choices):
                    a, b, _ = client.answers.pop((id_, choice)).token_ids
                    pairs[a, b] += 1
            client.events.clear()
        (stats,) = client.decoder.stats().drafters
    assert pairs.sum() == 48_000
    # The other choices wait for a place and are not drafted for; on a slow machine these are more.
    assert stats.drafted_at[0] > 2_400
    lowest = 0.02 if kind == "head of few tokens" else 0.15
    assert lowest < stats.accepted_at[0] / stats.drafted_at[0] < 0.85
    first = rows(text) * 48_000
    assert chi_square(pairs.sum(1), first) < chi_square_limit(n_vocab - 1)
    expected = np.concatenate([first[a] * rows([*text, a]) for a in range(n_vocab)])
    used = expected >= 5
    found = np.append(pairs.ravel()[used], pairs.ravel()[~used].sum())
    limits = np.append(expected[used], expected[~used].sum())
    assert chi_square(found, limits) < chi_square_limit(len(found) - 1)


# A draft model


def model_drafter(n_ctx: int = 256, **options: object) -> ModelDrafter:
    return ModelDrafter(FakeExecutor(n_vocab=N_VOCAB, block_tokens=4, **options), n_ctx=n_ctx)  # type: ignore[arg-type]


# A draft model equal to the target predicts every greedy token.  With a window it sees other contexts than the target, and
# its cache must return to rows that the window has passed.  A small cache preempts and does not hold every request.
@pytest.mark.parametrize(
    ("options", "is_right"),
    [
        ({"n_blocks": 2000}, True),
        ({"n_blocks": 2000, "layers": [(7, 0)]}, False),
        ({"n_blocks": 23}, True),
        ({"n_blocks": 2000, "max_rows": 16, "max_logit_rows": 8, "max_sequences": 8}, True),
    ],
    ids=["same", "window", "small-cache", "small-steps"],
)
@pytest.mark.parametrize("chained", [False, True])
def test_answers_do_not_depend_on_a_draft_model(options: dict[str, object], is_right: bool, chained: bool) -> None:
    requests = mixed_requests()
    with Client(n_blocks=900) as client:
        ids = [client.submit(tokens, sampling) for tokens, sampling in requests]
        client.run()
        plain = [
            [comparable(client.answer(id_, i)) for i in range(s.n)] for id_, (_, s) in zip(ids, requests, strict=True)
        ]
    drafters: list[Drafter] = [LookupDrafter()] * chained + [model_drafter(**options)]
    with Client(n_blocks=60, max_sequences=8, drafters=drafters, config=ALWAYS) as client:
        ids = [client.submit(tokens, sampling) for tokens, sampling in requests]
        client.run()
        for id_, expected in zip(ids, plain, strict=True):
            assert [comparable(client.answer(id_, choice)) for choice in range(len(expected))] == expected
        stats = client.decoder.stats().drafters[-1]
        assert (stats.name, stats.failure) == ("draft", "")
        assert stats.n_drafted_tokens > 100
        # Greedy tokens are always the likeliest; drawn tokens rarely are.
        assert (stats.n_accepted_tokens > stats.n_drafted_tokens / 20) == is_right
        client.expect_all_free()


def test_a_draft_model_does_not_read_a_prompt_again_after_a_restart(tmp_path: Path) -> None:
    text = prompt(180)
    only_early = next(token for token in text[:176] if token not in [*text[176:], *greedy_without_eog(text, 40)])
    tiers = CacheTiersConfig(disk_folder=str(tmp_path), disk_bytes=1 << 30, model=b"draft", always_reads=True)
    for is_first in (True, False):
        fails = None if is_first else only_early  # with this token in a step
        executor = FakeExecutor(n_vocab=N_VOCAB, block_tokens=4, n_blocks=200, fail_on=fails)
        drafter = ModelDrafter(executor, n_ctx=256, tiers=tiers)
        with Client(drafters=[drafter], config=ALWAYS) as client:
            while not client.decoder.stats().drafters[0].n_drafted_tokens:  # the answer does not wait for the disk
                id_ = client.submit(text, params(max_tokens=40))
                client.run()
                assert client.answer(id_).token_ids == greedy_without_eog(text, 40)
                assert not client.decoder.stats().drafters[0].failure
            stats = client.decoder.stats().drafters[0]
            assert (stats.n_accepted_tokens, stats.failure) == (stats.n_drafted_tokens, "")
            client.expect_all_free()
        assert drafter.tiers is not None
        assert drafter.tiers.disk is not None
        assert (drafter.tiers.disk.n_read >= 40) == (not is_first)


def test_a_draft_model_of_the_same_weights_is_always_right() -> None:
    with Client(drafters=[model_drafter(n_blocks=200)], config=ALWAYS) as client:
        texts = [prompt(n, seed=n) for n in (3, 9, 200, 31)]
        ids = [client.submit(text, params(max_tokens=30)) for text in texts]
        client.run()
        for id_, text in zip(ids, texts, strict=True):
            assert client.answer(id_).token_ids == greedy_without_eog(text, 30)
        stats = client.decoder.stats()
        # The end token, unknown to the draft model, is never drawn.
        assert stats.drafters[0].n_accepted_tokens >= 0.9 * stats.drafters[0].n_drafted_tokens > 50
        assert stats.n_steps < 30


def test_a_draft_model_beyond_its_positions_proposes_nothing() -> None:
    with Client(drafters=[model_drafter(n_ctx=20, n_blocks=200)], config=ALWAYS) as client:
        near, far = client.submit(prompt(5), params(max_tokens=30)), client.submit(prompt(50), params(max_tokens=30))
        client.run()
        assert client.answer(near).token_ids == greedy_without_eog(prompt(5), 30)
        finishes = client.answer(near).finish, client.answer(far).finish
        assert finishes[0] is not None
        assert finishes[1] is not None
        assert 0 < finishes[0].n_drafted_tokens <= 15
        assert finishes[1].n_drafted_tokens == 0


def test_a_draft_model_that_fails_is_left_alone() -> None:
    drafter = model_drafter(n_blocks=200, fail_on=5)
    with Client(drafters=[drafter], config=ALWAYS) as client:
        id_ = client.submit([5, *prompt(5)], params(max_tokens=30))
        client.run()
        assert client.answer(id_).token_ids == greedy_without_eog([5, *prompt(5)], 30)
        assert "token 5 " in client.decoder.stats().drafters[0].failure


def test_draft_models_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="recurrent states"):
        model_drafter(n_state=6, n_states=8)
    with pytest.raises(UnsupportedError, match="is an encoder"):
        model_drafter(undivided_prompts=True)


# Masks, and logits from outside


def every_third(answer: Sequence[int]) -> list[int]:
    return list(range((answer[-1] if answer else 0) % 3, N_VOCAB, 3))


# Masks come late, or are declined along a draft; then they are requested one at a time.
@pytest.mark.parametrize(("pause_s", "declines"), [(0.0, 0), (0.002, 0), (0.0, 2)])
@pytest.mark.parametrize("agreement", [0.5, 1.0])
def test_drafts_behind_masks_and_outside_logits(agreement: float, pause_s: float, declines: int) -> None:
    prompts = [prompt(9, seed=seed) for seed in range(8)]
    expected = [greedy_among(every_third, text, 24) for text in prompts]
    scripts = [text + answer for text, answer in zip(prompts, expected, strict=True)]
    # Masks along drafts are computed while the step runs, so the step is long enough for some even on a busy machine.
    step_s = 0.001 if pause_s else 0.03
    with Client(drafters=[scripted(scripts, agreement)], config=ALWAYS, step_s=step_s) as client:
        thread = MaskThread(client, every_third, pause_s=pause_s, declines=declines)
        ids = [
            client.submit(text, params(max_tokens=24), grammar=True, external_logits=i > 5)
            for i, text in enumerate(prompts)
        ]
        while any(client.open.values()):
            for event in client.poll():
                if event.kind == "logits":
                    client.decoder.provide_logits(event.request_id, event.choice, np.array(event.logits))
        for id_, answer in zip(ids, expected, strict=True):
            assert client.answer(id_).token_ids == answer
            finish = client.answer(id_).finish
            assert finish is not None
            assert finish.n_accepted_tokens > (8 if agreement == 1 else 0)
        assert thread.n_drafted > 0 or pause_s
        client.expect_all_free()


# Interfaces


def test_names_and_depths_are_checked() -> None:
    with pytest.raises(RequestError, match=r"'draft'.* auto, off, lookup"):
        Client(drafters=[LookupDrafter()], config={"speculation": "draft"})
    with pytest.raises(RequestError, match=r"two drafters.*'lookup'"):
        Client(drafters=[LookupDrafter(), LookupDrafter()])
    for config, text in (
        ({"draft_max": 0}, "draft_max is 0: expected 1 to 64"),
        ({"draft_max": 4, "draft_min": 5}, "draft_min is 5"),
    ):
        with pytest.raises(RequestError, match=text):
            Client(config=config)
    with pytest.raises(RequestError, match="agreement"):
        ScriptedDrafter([], agreement=1.5, n_vocab=4)
    with Client() as client:
        with pytest.raises(RequestError, match=r"'lookup'.* auto, off"):
            client.submit(prompt(4), speculation="lookup")
        with pytest.raises(RequestError, match=r"prediction .*64\b"):
            client.submit(prompt(4), prediction=[64])


class SmallClient(Client):
    def __init__(self, n_vocab: int, fake: dict[str, object], drafter: Drafter) -> None:
        from quire._native.engine import Decoder, DecoderConfig
        from quire._native.testing import FakeExecutor

        decoder = Decoder(
            FakeExecutor(block_tokens=4, **fake),  # type: ignore[arg-type]
            VocabInfo(n_vocab, [], TEXT[:n_vocab]),
            DecoderConfig(n_ctx=64, speculation="auto", draft_max=2, draft_min=2),
            [drafter],
        )
        self.watch(decoder)


def logits_of(tokens: Sequence[int], n_vocab: int) -> np.ndarray:
    from decoder_client import U64, hash_of, mix

    h = hash_of(tokens)
    return np.array([(mix((h + v) & U64) >> 40) / 2**21 for v in range(n_vocab)], dtype=np.float32)
