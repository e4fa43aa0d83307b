"""The stages of sampling in NumPy, each implemented from its published definition.  Oracles for test_sampling.py.

A distribution is a dict from token ids to logits (float64) of the remaining tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Left = dict[int, float]


def probabilities(left: Left) -> dict[int, float]:
    values = np.array(list(left.values()))
    weights = np.exp(values - values.max())
    return dict(zip(left, weights / weights.sum(), strict=True))


def likeliest_first(left: Left) -> list[int]:
    return sorted(left, key=lambda token: (-left[token], token))


def only(left: Left, kept: Sequence[int]) -> Left:
    wanted = set(kept)
    return {token: logit for token, logit in left.items() if token in wanted}


def temperature(left: Left, value: float) -> Left:
    """Ackley et al. 1985; 0 keeps only the likeliest token."""
    return {token: logit / value for token, logit in left.items()} if value else only(left, likeliest_first(left)[:1])


def entropy(left: Left) -> float:
    """Shannon 1948, in nats."""
    p = np.array(list(probabilities(left).values()))
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def dynamic_temperature(left: Left, value: float, spread: float, exponent: float) -> Left:
    """text-generation-webui pull request 4879."""
    low, high = max(0.0, value - spread), value + spread
    return temperature(left, low + (high - low) * (entropy(left) / math.log(len(left))) ** exponent)


def top_k(left: Left, k: int) -> Left:
    """Fan et al. 2018."""
    return only(left, likeliest_first(left)[:k])


def top_p(left: Left, p: float, min_keep: int = 0) -> Left:
    """Holtzman et al. 2020: the smallest set of likeliest tokens with at least p."""
    order, chance = likeliest_first(left), probabilities(left)
    reached = np.cumsum([chance[token] for token in order]) >= p
    return only(left, order[: max(int(np.argmax(reached)) + 1, min_keep)] if reached.any() else order)


def min_p(left: Left, fraction: float, min_keep: int = 0) -> Left:
    """Nguyen et al. 2024."""
    chance = probabilities(left)
    limit = fraction * max(chance.values())
    kept = [token for token in left if chance[token] >= limit]
    return only(left, kept if len(kept) >= min_keep else likeliest_first(left)[:min_keep])


def typical_p(left: Left, p: float, min_keep: int = 0) -> Left:
    """Meister et al. 2023: by distance of information from the entropy."""
    chance, expected = probabilities(left), entropy(left)
    order = sorted(left, key=lambda token: (abs(-math.log(chance[token]) - expected), token))
    reached = np.cumsum([chance[token] for token in order]) >= p
    return only(left, order[: max(int(np.argmax(reached)) + 1, min_keep)] if reached.any() else order)


def tfs_z(left: Left, z: float, min_keep: int = 0) -> Left:
    """Phénix and Egan 2019: second differences of the sorted probabilities, cut where their normalized sum passes z."""
    order, chance = likeliest_first(left), probabilities(left)
    if len(order) < 3:
        return left
    curvature = np.abs(np.diff([chance[token] for token in order], n=2))
    within = np.cumsum(curvature / curvature.sum()) <= z
    n = len(within) if within.all() else int(np.argmin(within))
    return only(left, order[: max(n + 1, min_keep)])


def top_n_sigma(left: Left, n: float) -> Left:
    """Tang et al. 2024: logits of at least max - n * standard deviation."""
    values = np.array(list(left.values()))
    return only(left, [token for token in left if left[token] >= values.max() - n * values.std()])


def xtc(left: Left, threshold: float, min_keep: int = 0) -> Left:
    """text-generation-webui pull request 6335 if its coin toss succeeds, with llama.cpp's condition on what remains."""
    order, chance = likeliest_first(left), probabilities(left)
    top = [token for token in order if chance[token] >= threshold]
    if len(left) - len(top[:-1]) < min_keep:
        return left
    return only(left, [token for token in left if token not in top[:-1]])


def penalties(
    left: Left, window: Sequence[int], generated: Sequence[int], repetition: float, presence: float, frequency: float
) -> Left:
    """Keskar et al. 2019 for all tokens of the window; OpenAI's presence and frequency for the generated ones in it."""
    out = {}
    for token, logit in left.items():
        value = logit
        if token in window:
            value = value / repetition if value > 0 else value * repetition
        n = list(generated).count(token)
        out[token] = value - presence * (n > 0) - frequency * n
    return out


def breaking_tokens(tokens: Sequence[int], token_bytes: Sequence[bytes], breakers: Sequence[str]) -> list[bool]:
    """Return for each token whether an occurrence of a breaker in the text ends inside it."""
    text = b"".join(token_bytes[token] for token in tokens)
    ends = {
        begin + len(breaker.encode())
        for breaker in breakers
        for begin in range(len(text))
        if text.startswith(breaker.encode(), begin)
    }
    flags, at = [], 0
    for token in tokens:
        flags.append(any(at < end <= at + len(token_bytes[token]) for end in ends))
        at += len(token_bytes[token])
    return flags


def dry(
    left: Left, tokens: Sequence[int], breaking: Sequence[bool], multiplier: float, base: float, allowed: int
) -> Left:
    """text-generation-webui pull request 5637, by comparing every earlier position with the end, token by token."""
    longest: dict[int, int] = {}
    for i in range(1, len(tokens)):
        if breaking[i]:
            continue
        n = 0
        while n < i and tokens[i - 1 - n] == tokens[len(tokens) - 1 - n] and not breaking[len(tokens) - 1 - n]:
            n += 1
        longest[tokens[i]] = max(longest.get(tokens[i], 0), n)
    out = dict(left)
    for token, n in longest.items():
        if n >= allowed and token in out:
            out[token] -= multiplier * base ** (n - allowed)
    return out


def mirostat_1_k(left: Left, mu: float, n_vocab: int) -> float:
    """Basu et al. 2021, algorithm 1: Zipf's exponent from the 100 likeliest by least squares, then k."""
    every = probabilities(left)
    chance = [every[token] for token in likeliest_first(left)[:101]]
    t = np.log(np.arange(2, len(chance) + 1) / np.arange(1, len(chance)))
    b = np.log(np.array(chance[:-1]) / np.array(chance[1:]))
    s = float((t * b).sum() / (t * t).sum())
    epsilon = s - 1
    return float((epsilon * 2**mu / (1 - n_vocab**-epsilon)) ** (1 / s))


def adaptive_p(left: Left, target: float, mean: float) -> Left:
    """Adaptive-P (ggml-org/llama.cpp pull request 17927) after tokens with this mean probability."""
    aim = min(max(2 * target - mean, 0.0), 1.0)
    distances = {token: abs(p - aim) / 0.3 for token, p in probabilities(left).items()}
    return {token: 5 - 10 * d * d / (1 + d) for token, d in distances.items()}
