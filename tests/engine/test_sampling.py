"""The sampling chain against NumPy oracles (sampling_oracles.py), its draws against their own distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import sampling_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from quire._native.engine import SamplingParams, VocabInfo, default_sampling_order
from quire._native.testing import Sampler, log_probs_of, log_sum_exp, philox4x32_10, token_random
from quire.errors import RequestError, ShapeError

Row = npt.NDArray[np.float32]


def make_params(**options: object) -> SamplingParams:
    params = SamplingParams()
    for name, value in options.items():
        setattr(params, name, value)
    return params


def make_vocab(n: int, eog: Sequence[int] = ()) -> VocabInfo:
    return VocabInfo(n, list(eog), [b"%d " % i for i in range(n)])


def test_a_vocabulary_shows_bytes() -> None:
    with pytest.raises(TypeError, match="token_bytes"):
        VocabInfo(2, [], [b"a", "b"])  # type: ignore[list-item]


def distribution(
    row: Row, options: dict[str, object], tokens: Sequence[int] = (), n_prompt: int = 0
) -> dict[int, float]:
    sampler = Sampler(make_params(**options), make_vocab(len(row)))
    ids, probs = sampler.distribution(row, tokens, n_prompt)
    return dict(zip(ids.tolist(), probs.tolist(), strict=True))


def assert_equal(found: dict[int, float], left: oracle.Left) -> None:
    expected = {token: p for token, p in oracle.probabilities(left).items() if p > 1e-36}
    found = {token: p for token, p in found.items() if p > 1e-36}
    assert set(found) == set(expected)
    for token, p in expected.items():
        assert found[token] == pytest.approx(p, rel=2e-5, abs=1e-12)


def as_left(row: Row) -> oracle.Left:
    return {i: float(x) for i, x in enumerate(row) if x > -math.inf}


def rows() -> dict[str, Row]:
    rng = np.random.default_rng(7)
    peaked = rng.normal(0, 2, 5000)
    peaked[rng.integers(0, 5000, 12)] += rng.uniform(6, 14, 12)
    masked = rng.normal(0, 3, 300)
    masked[rng.random(300) < 0.5] = -np.inf
    return {
        "one": np.zeros(1, np.float32),
        "two": np.array([0.3, -1.2], np.float32),
        "small": rng.normal(0, 2, 40).astype(np.float32),
        "flat": rng.normal(0, 1, 3000).astype(np.float32),
        "peaked": peaked.astype(np.float32),
        "masked": masked.astype(np.float32),
        "shifted": (rng.normal(0, 2, 777) - 300).astype(np.float32),
        "ties": rng.integers(-3, 4, 200).astype(np.float32),
    }


ROWS = rows()
STAGES = [
    ({"temperature": 0.7}, lambda left: oracle.temperature(left, 0.7)),
    ({"temperature": 0.0}, lambda left: oracle.temperature(left, 0.0)),
    ({"temperature": 1.9}, lambda left: oracle.temperature(left, 1.9)),
    ({"top_k": 1}, lambda left: oracle.top_k(left, 1)),
    ({"top_k": 17}, lambda left: oracle.top_k(left, 17)),
    ({"top_k": 1000}, lambda left: oracle.top_k(left, 1000)),
    ({"min_p": 0.07}, lambda left: oracle.min_p(left, 0.07)),
    ({"min_p": 0.001}, lambda left: oracle.min_p(left, 0.001)),
    ({"top_n_sigma": 1.3}, lambda left: oracle.top_n_sigma(left, 1.3)),
]
# Stages that sum up to a limit: with equal logits the result depends on rounding, so these rows have no ties.
SUMMING_STAGES = [
    ({"top_p": 0.0}, lambda left: oracle.top_p(left, 0.0)),
    ({"top_p": 0.5}, lambda left: oracle.top_p(left, 0.5)),
    ({"top_p": 0.93}, lambda left: oracle.top_p(left, 0.93)),
    ({"typical_p": 0.2}, lambda left: oracle.typical_p(left, 0.2)),
    ({"typical_p": 0.9}, lambda left: oracle.typical_p(left, 0.9)),
    ({"tfs_z": 0.5}, lambda left: oracle.tfs_z(left, 0.5)),
    ({"tfs_z": 0.95}, lambda left: oracle.tfs_z(left, 0.95)),
    ({"dynatemp_range": 0.4}, lambda left: oracle.dynamic_temperature(left, 1.0, 0.4, 1.0)),
    (
        {"temperature": 0.8, "dynatemp_range": 0.5, "dynatemp_exponent": 1.7},
        lambda left: oracle.dynamic_temperature(left, 0.8, 0.5, 1.7),
    ),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.03}, lambda left: oracle.xtc(left, 0.03)),
]


def described(stage: object) -> str:
    return ",".join(f"{name}={value}" for name, value in stage.items()) if isinstance(stage, dict) else ""


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize(("options", "expected"), STAGES, ids=described)
def test_stage_equals_numpy(row, options, expected):
    assert_equal(distribution(ROWS[row], options), expected(as_left(ROWS[row])))


@pytest.mark.parametrize("row", [name for name in ROWS if name not in ("ties", "one")], ids=str)
@pytest.mark.parametrize(("options", "expected"), SUMMING_STAGES, ids=described)
def test_summing_stage_equals_numpy(row, options, expected):
    assert_equal(distribution(ROWS[row], options), expected(as_left(ROWS[row])))


@pytest.mark.parametrize("p", np.linspace(0.02, 0.98, 25).round(3).tolist())
@pytest.mark.parametrize("stage", ["top_p", "typical_p", "tfs_z"])
def test_summing_stage_after_top_k_equals_numpy(stage, p):
    expected = {"top_p": oracle.top_p, "typical_p": oracle.typical_p, "tfs_z": oracle.tfs_z}[stage]
    left = oracle.top_k(as_left(ROWS["peaked"]), 60)
    assert_equal(distribution(ROWS["peaked"], {"top_k": 60, stage: p}), expected(left, p))


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({"top_p": 0.5}, lambda left, n: oracle.top_p(left, 0.5, n)),
        ({"min_p": 0.2}, lambda left, n: oracle.min_p(left, 0.2, n)),
        ({"typical_p": 0.3}, lambda left, n: oracle.typical_p(left, 0.3, n)),
        ({"tfs_z": 0.5}, lambda left, n: oracle.tfs_z(left, 0.5, n)),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.03}, lambda left, n: oracle.xtc(left, 0.03, n)),
        ({"top_k": 3}, lambda left, n: oracle.top_k(left, 3)),
    ],
    ids=described,
)
def test_so_many_are_kept_at_least(options, stage):
    """``min_keep`` on rows of the whole vocabulary, on sorted lists, and above the number of candidates."""
    for name in ("two", "small", "peaked", "masked"):
        row = ROWS[name]
        for before in ({}, {"top_k": 30}) if "top_k" not in options else ({},):
            left = oracle.top_k(as_left(row), 30) if before else as_left(row)
            for n in (1, 2, 9, 29, 30, 31, len(left) - 1, len(left), 2**31 - 1):
                assert_equal(distribution(row, {**before, **options, "min_keep": n}), stage(left, n))


def test_log_probabilities_after_the_chain():
    """Oracle: the chain of the oracles gives the log-probabilities of the drawn token and of the likeliest ones."""
    rng = np.random.default_rng(9)
    for trial, more in enumerate(({}, {"top_p": 0.9}, {"mirostat": 2, "mirostat_tau": 2.0}, {"temperature": 0.0}) * 3):
        row = rng.normal(0, 2, 500).astype(np.float32)
        options = {"temperature": 0.7, "top_k": 0 if "mirostat" in more else 12, **more}
        left = oracle.temperature(as_left(row), options["temperature"])
        left = oracle.top_k(left, 12) if options["top_k"] else left
        left = oracle.top_p(left, 0.9) if "top_p" in more else left
        if "mirostat" in more:
            chance = oracle.probabilities(left)
            left = oracle.only(left, [token for token in left if -math.log2(chance[token]) <= 4.0])
        expected = oracle.probabilities(left)
        sampler = Sampler(make_params(seed=trial, logprobs=5, processed_logprobs=True, **options), make_vocab(len(row)))
        drawn = sampler.sample(row, [], 0)
        assert math.exp(drawn.logprob) == pytest.approx(expected[drawn.id], rel=1e-4)
        assert [id_ for id_, _ in drawn.top] == oracle.likeliest_first(left)[:5]
        assert [math.exp(p) for _, p in drawn.top] == pytest.approx([expected[id_] for id_, _ in drawn.top], rel=1e-4)


def largest_of_strips(row: Row) -> Row:
    strips = np.pad(row, (0, -len(row) % 64), constant_values=np.finfo(np.float32).min).reshape(-1, 64)
    return np.where(np.isfinite(strips).all(-1), strips.max(-1), np.nan).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 3},
        {"top_k": 1},
        {"top_k": 40, "temperature": 1.5},
        {"top_k": 2000},
        {"min_p": 0.3},
        {"top_n_sigma": 1.0},
        {"temperature": 0.0, "bad_token_ids": list(range(40))},
        {"repetition_penalty": 1.5, "temperature": 0.0},
        {"samplers": ["temperature"]},
    ],
    ids=described,
)
def test_largest_of_strips_change_nothing(options: dict[str, object]) -> None:
    """Rows of up to 4000 tokens, also with ties across strips and with excluded tokens."""
    rng = np.random.default_rng(3)
    for trial in range(60):
        n = int(rng.integers(41, 4000))
        row = rng.normal(0, 3, n).astype(np.float32)
        if trial % 3 == 0:
            row = np.round(row)
        if trial % 5 == 0:
            row[rng.integers(0, n, 5)] = -np.inf
        for words in (None, rng.integers(0, 2**32, (n + 31) // 32, dtype=np.uint32)):
            drawn = [
                Sampler(make_params(seed=trial, **options), make_vocab(n)).sample(row, [1, 5, 3], 3, words, maxima)
                for maxima in (None, largest_of_strips(row))
            ]
            assert drawn[0].id == drawn[1].id
            assert drawn[0].logprob == drawn[1].logprob
            assert drawn[0].top == drawn[1].top


def test_only_strips_that_may_hold_a_token_are_looked_at() -> None:
    row = np.zeros(1000, np.float32)
    row[[70, 700]] = 5, 6
    maxima = largest_of_strips(row)
    sampler = Sampler(make_params(temperature=0.0), make_vocab(1000))
    assert sampler.sample(row, [], 0, None, maxima).id == 700
    maxima[700 // 64] = 0  # a strip that claims a small maximum
    assert sampler.sample(row, [], 0, None, np.array([0, 5, *maxima[2:]], np.float32)).id == 70
    row[3] = np.nan
    with pytest.raises(RequestError, match=r"token 3 .*nan"):
        sampler.sample(row, [], 0, None, largest_of_strips(row))
    with pytest.raises(ShapeError, match=r"\b15 .* 16\b"):
        sampler.sample(row, [], 0, None, maxima[:15])


def test_ties_go_to_the_lowest_ids():
    row = np.array([1, 3, 2, 3, 3], np.float32)
    assert set(distribution(row, {"temperature": 0.0})) == {1}
    assert set(distribution(row, {"top_k": 2})) == {1, 3}
    assert set(distribution(row, {"top_p": 0.4})) == {1, 3}


@pytest.mark.parametrize("row", ["small", "peaked", "masked", "shifted"])
def test_default_chain_equals_numpy(row):
    options = {"temperature": 0.8, "top_k": 60, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9}
    left = oracle.temperature(as_left(ROWS[row]), 0.8)
    left = oracle.min_p(oracle.top_p(oracle.top_k(left, 60), 0.95), 0.02)
    assert_equal(distribution(ROWS[row], options), oracle.typical_p(left, 0.9))


def test_order_is_a_parameter():
    row = ROWS["flat"]
    options = {"temperature": 0.3, "top_p": 0.5}
    hot_first = distribution(row, options | {"samplers": ["temperature", "top_p"]})
    cut_first = distribution(row, options | {"samplers": ["top_p", "temperature"]})
    assert_equal(hot_first, oracle.top_p(oracle.temperature(as_left(row), 0.3), 0.5))
    assert_equal(cut_first, oracle.temperature(oracle.top_p(as_left(row), 0.5), 0.3))
    assert len(hot_first) < len(cut_first)


@pytest.mark.parametrize("order", [["penalties", "top_k", "temperature"], ["top_k", "temperature", "penalties"]])
@pytest.mark.parametrize("window", [None, 0, 5, 12, 1000])
def test_penalties_equal_numpy(order, window):
    rng = np.random.default_rng(3)
    row = rng.normal(0, 3, 50).astype(np.float32)
    tokens = rng.integers(0, 30, 40).tolist()
    n_prompt = 22
    begin = 0 if window is None else max(0, len(tokens) - window)
    options = {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "penalty_last_n": window,
        "top_k": 30,
        "temperature": 0.6,
        "samplers": order,
    }
    left = as_left(row)
    for stage in order:
        if stage == "penalties":
            left = oracle.penalties(left, tokens[begin:], tokens[max(begin, n_prompt) :], 1.3, 0.5, 0.25)
        else:
            left = oracle.top_k(left, 30) if stage == "top_k" else oracle.temperature(left, 0.6)
    assert_equal(distribution(row, options, tokens, n_prompt), left)


def test_counting_token_by_token_equals_counting_at_once():
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, 12, 90).tolist()
    options = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "penalty_last_n": 16, "dry_multiplier": 0.7}
    options |= {"seed": 5}
    vocab = make_vocab(12)
    growing = Sampler(make_params(**options), vocab)
    for n in range(10, 90):
        row = rng.normal(0, 1, 12).astype(np.float32)
        fresh = Sampler(make_params(**options), vocab)
        assert growing.sample(row, tokens[:n], 10).id == fresh.sample(row, tokens[:n], 10).id


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 5), min_size=0, max_size=60),
    allowed=st.integers(1, 4),
    window=st.none() | st.integers(0, 70),
)
def test_dry_equals_numpy(tokens, allowed, window):
    texts = [b"a", b"b", b"x\n", b"ab", b"", b"b:"]
    breakers = ["\n", "ab:", "bb"]
    row = np.linspace(1, -1, 6).astype(np.float32)
    params = make_params(
        dry_multiplier=0.9,
        dry_base=1.5,
        dry_allowed_length=allowed,
        dry_penalty_last_n=window,
        dry_sequence_breakers=breakers,
    )
    ids, probs = Sampler(params, VocabInfo(6, [], texts)).distribution(row, tokens, 0)
    begin = 0 if window is None else max(0, len(tokens) - window)
    breaking = oracle.breaking_tokens(tokens, texts, breakers)
    left = oracle.dry(as_left(row), tokens[begin:], breaking[begin:], 0.9, 1.5, allowed)
    assert_equal(dict(zip(ids.tolist(), probs.tolist(), strict=True)), left)


def test_dry_stays_finite_on_long_repetitions():
    found = distribution(np.zeros(4, np.float32), {"dry_multiplier": 5.0, "dry_base": 4.0}, [1] * 5000, 0)
    assert found.get(1, 0.0) == 0.0
    assert found[0] == pytest.approx(1 / 3)


def test_xtc_happens_with_its_probability():
    row = np.array([3, 2.9, 2.8, 0], np.float32)
    sampler = Sampler(make_params(xtc_probability=0.3, xtc_threshold=0.1, seed=11), make_vocab(4))
    n = 4000
    happened = sum(0 not in sampler.distribution(row, [0] * i, 0)[0] for i in range(n))
    assert abs(happened - 0.3 * n) < 4 * math.sqrt(n * 0.3 * 0.7)  # four standard deviations of a binomial


@pytest.mark.parametrize("row", ["small", "flat", "peaked", "masked"])
@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_equals_numpy(row, version):
    """Both versions over several steps: the kept set follows mu, mu follows the surprise of the drawn token."""
    logits, mu = ROWS[row], 2 * 4.0
    sampler = Sampler(
        make_params(mirostat=version, mirostat_tau=4.0, mirostat_eta=0.2, seed=3), make_vocab(len(logits))
    )
    tokens: list[int] = []
    left = as_left(logits)
    chance = oracle.probabilities(left)
    for _ in range(12):
        if version == 1:
            k = max(1, int(oracle.mirostat_1_k(left, mu, len(logits))))  # rounded down, as in llama.cpp
            kept = oracle.top_k(left, k)
        else:
            kept = oracle.only(
                left, [t for t in left if -math.log2(chance[t]) <= mu] or oracle.likeliest_first(left)[:1]
            )
        ids, probs = sampler.distribution(logits, tokens, 0)
        assert_equal(dict(zip(ids.tolist(), probs.tolist(), strict=True)), kept)
        tokens.append(sampler.sample(logits, tokens, 0).id)
        mu -= 0.2 * (-math.log2(chance[tokens[-1]]) - 4.0)


def test_token_rules():
    row = np.array([5, 4, 3, 2, 1, 0], np.float32)
    assert_equal(distribution(row, {"bad_token_ids": [0, 2]}), {1: 4, 3: 2, 4: 1, 5: 0})
    assert_equal(distribution(row, {"allowed_token_ids": [4, 2, 4]}), {2: 3, 4: 1})
    assert_equal(distribution(row, {"allowed_token_ids": [4, 2], "bad_token_ids": [2]}), {4: 1})
    assert_equal(distribution(row, {"logit_bias": [(3, 2.5), (0, -50.0)], "top_k": 2}), {3: 4.5, 1: 4})
    assert_equal(distribution(row, {"allowed_token_ids": [4, 2], "logit_bias": [(4, 7.0), (1, 9.0)]}), {2: 3, 4: 8})
    with pytest.raises(RequestError, match="no token is left"):
        distribution(row, {"allowed_token_ids": [4], "bad_token_ids": [4]})


def test_ends_are_excluded_before_min_tokens():
    row = np.array([5, 4, 3, 2], np.float32)
    vocab = make_vocab(4, eog=[0])
    sampler = Sampler(make_params(min_tokens=2, stop_token_ids=[1], temperature=0.0), vocab)
    assert [sampler.sample(row, [3] * n, 1).id for n in (1, 2, 3, 4)] == [2, 2, 0, 0]
    assert Sampler(make_params(ignore_eos=True, temperature=0.0), vocab).sample(row, [3] * 9, 1).id == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 17, 4999])
def test_bad_logits_are_the_requests_error(bad, place):
    row = ROWS["peaked"].copy()
    row[place] = bad
    for options in ({"temperature": 0.0}, {}, {"top_k": 5}, {"logprobs": 3}):
        with pytest.raises(RequestError, match=f"token {place} has"):
            Sampler(make_params(**options), make_vocab(5000)).sample(row, [], 0)


def test_rows_without_a_token_are_refused():
    with pytest.raises(RequestError, match="no token is left"):
        distribution(np.full(9, -np.inf, np.float32), {})
    with pytest.raises(ShapeError, match=r"\b9 .* 8\b"):
        Sampler(make_params(), make_vocab(8)).sample(np.zeros(9, np.float32), [], 0)
    with pytest.raises(RequestError, match="n_prompt"):
        Sampler(make_params(), make_vocab(9)).sample(np.zeros(9, np.float32), [1], 2)


@pytest.mark.parametrize("options", [{"temperature": 1e-30}, {"temperature": 1e30}, {"repetition_penalty": 1e30}])
def test_extreme_numbers_stay_defined(options):
    row = np.array([3e38, -3e38, 1.0, 3e38], np.float32)
    found = distribution(row, options, [0, 1], 0)
    assert sum(found.values()) == pytest.approx(1)
    assert all(math.isfinite(p) for p in found.values())


def test_philox_known_answers():
    """The vectors published with Random123 (Salmon et al. 2011)."""
    assert philox4x32_10([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox4x32_10([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter, key = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    assert philox4x32_10(counter, key) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_random_numbers_are_uniform_and_unrelated():
    keys = [(seed, choice, position) for seed in range(4) for choice in range(4) for position in range(500)]
    numbers = np.array([token_random(*key) for key in keys])
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(np.unique(numbers[:, 0])) == len(keys)
    assert np.abs(np.corrcoef(numbers.T)[0, 1]) < 4 / math.sqrt(len(keys))
    counts = np.histogram(numbers[:, 0], bins=64, range=(0, 1))[0]
    assert chi_square(counts, np.full(64, len(keys) / 64)) < chi_square_limit(63)


def chi_square(found: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    return float(((found - expected) ** 2 / expected).sum())


def chi_square_limit(degrees: int) -> float:
    """Return a limit that chance exceeds once in about 30 000 (Wilson and Hilferty's approximation at four standard deviations)."""
    return degrees * (1 - 2 / (9 * degrees) + 4 * math.sqrt(2 / (9 * degrees))) ** 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 8},
        {"top_p": 0.8, "temperature": 1.3},
        {"min_p": 0.1},
        {"typical_p": 0.7},
        {"logit_bias": [(3, 1.0)]},
    ],
    ids=described,
)
def test_draws_follow_the_distribution(options):
    row = np.random.default_rng(1).normal(0, 1.5, 600).astype(np.float32)
    row[40:] -= 4
    params = make_params(**options, seed=42)
    sampler = Sampler(params, make_vocab(600))
    ids, probs = sampler.distribution(row, [], 0)
    n = 6000
    draws = [sampler.sample(row, [0] * position, 0).id for position in range(n // 100)]
    for seed in range(n - len(draws)):
        draws.append(Sampler(make_params(**options, seed=seed), make_vocab(600)).sample(row, [], 0).id)
    assert set(draws) <= set(ids.tolist())
    # Tokens too rare for the approximation are merged into one class.
    expected = probs.astype(float) * n
    common = expected >= 8
    found = np.array([draws.count(int(token)) for token in ids[common]] + [0])
    found[-1] = n - found.sum()
    limits = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    used = limits > 1e-6
    assert chi_square(found[used], limits[used]) < chi_square_limit(int(used.sum()) - 1)


def test_same_seed_same_tokens():
    vocab = make_vocab(3000)
    params = make_params(seed=9, n=3)

    def answer(choice: int) -> list[int]:
        sampler, tokens = Sampler(params, vocab, choice), [1, 2]
        for _ in range(40):
            tokens.append(sampler.sample(ROWS["flat"], tokens, 2).id)
        return tokens

    answers = [answer(choice) for choice in range(3)]
    assert answers == [answer(choice) for choice in range(3)]
    assert len({tuple(tokens) for tokens in answers}) == 3
    # A new sampler draws the same token at this position.
    assert Sampler(params, vocab, 1).sample(ROWS["flat"], answers[1][:30], 2).id == answers[1][30]


def test_without_a_seed_samplers_differ():
    vocab = make_vocab(3000)
    drawn = {Sampler(make_params(), vocab).sample(ROWS["flat"], [], 0).id for _ in range(20)}
    assert len(drawn) > 5


@pytest.mark.parametrize("row", ["small", "flat", "peaked", "masked", "shifted"])
def test_log_probabilities_equal_numpy(row):
    logits = ROWS[row].astype(np.float64)
    expected = logits - (logits.max() + np.log(np.exp(logits - logits.max()).sum()))
    assert log_sum_exp(ROWS[row]) == pytest.approx(float(logits.max() - expected.max()), abs=1e-5)
    order = np.lexsort((np.arange(len(logits)), -logits))[:20]
    token = log_probs_of(ROWS[row], int(order[7]), 20)
    assert token.logprob == pytest.approx(expected[order[7]], abs=1e-5)
    assert [id for id, _ in token.top] == order.tolist()
    assert [p for _, p in token.top] == pytest.approx(expected[order].tolist(), abs=1e-5)


def test_log_probabilities_are_the_models_own():
    row = ROWS["small"]
    options = {"temperature": 0.2, "top_k": 2, "logit_bias": [(5, 30.0)], "logprobs": 4, "seed": 1}
    drawn = Sampler(make_params(**options), make_vocab(len(row))).sample(row, [], 0)
    plain = log_probs_of(row, drawn.id, 4)
    assert (drawn.id, drawn.logprob, drawn.top) == (5, plain.logprob, plain.top)


def test_default_order_of_samplers():
    wanted = ["penalties", "temperature", "top_k", "top_p", "min_p", "typical_p", "mirostat"]
    assert [name for name in default_sampling_order() if name in wanted] == wanted


@pytest.mark.parametrize("choice", [-1, 1, 16])
def test_choices_are_limited_by_n(choice):
    with pytest.raises(RequestError, match="choice"):
        Sampler(make_params(), make_vocab(3), choice)


@pytest.mark.parametrize("top_k", [0, 12])
def test_adaptive_p_aims_past_the_mean_of_what_was_drawn(top_k: int) -> None:
    row, target, decay = ROWS["small"], 0.15, 0.8
    options = {"adaptive_target": target, "adaptive_decay": decay, "top_k": top_k, "seed": 4}
    sampler, tokens = Sampler(make_params(**options), make_vocab(len(row))), [3]
    left = oracle.top_k(as_left(row), top_k) if top_k else as_left(row)
    before, weighted, weight = oracle.probabilities(left), target / (1 - decay), 1 / (1 - decay)
    means = []
    for _ in range(30):
        ids, probs = sampler.distribution(row, tokens, 1)
        found = dict(zip(ids.tolist(), probs.tolist(), strict=True))
        assert_equal(found, oracle.adaptive_p(left, target, weighted / weight))
        drawn = sampler.sample(row, tokens, 1).id
        tokens.append(drawn)
        weighted, weight = before[drawn] + decay * weighted, 1 + decay * weight
        means.append(before[drawn])
    assert len(set(means)) > 2
    refused = make_params(adaptive_target=0.5, mirostat=2)
    with pytest.raises(RequestError, match="adaptive_target"):
        refused.validate()
