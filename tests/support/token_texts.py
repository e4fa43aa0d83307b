"""Random texts that are hard for tokenizers: mixed scripts, joiners, control characters, runs, near-misses of marks."""

from __future__ import annotations

import random
from collections.abc import Iterator

# Only characters of Unicode 14, so that every oracle knows them.
SCRIPTS = [
    (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x5D0, 0x5EB), (0x600, 0x700), (0x900, 0x980),
    (0xE00, 0xE5C), (0x1100, 0x1200), (0x1780, 0x17F0), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x20A0),
    (0x2100, 0x2400), (0x2460, 0x2500), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFB00, 0xFB50),
    (0xFF00, 0xFFF0),
    (0x10400, 0x10450), (0x1D400, 0x1D500), (0x1F300, 0x1F650), (0x1F900, 0x1FA00), (0x20000, 0x20100),
]  # fmt: skip
ODD = [
    "\u200d", "\ufe0f", "\u0301", "\u00a0", "\u3000", "\u2028", "\u0085", "\r\n", "\n", "\r", "\t", "\v", "\x00",
    "\x1c", "\ufeff", "\ufffd", "\U0010ffff", "\ue000", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "e\u0301\u0323", "ǅ", "ſ",
    "ı", "İ", "ß", "Ⅷ", "²", "½", "٣", "५", "𝟘",
]  # fmt: skip
WORDS = [
    "the", "Hello", "world", "'s", "'S", "'re", "'VE", "'ll", "'lL", "'ſ", "don't", "I'M", "3.14", "1234567", "   ",
    " ", "\n\n", " \n ", "  \t", "===", "...", "!?", "()", "{};", "_x_", "camelCase", "https://x.y/z?q=1",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<|im_", "start|>", "<", "|>",
    "[INST]", "<s>", "</s>", "<|eot_id|>", "<|begin_of_text|>", "nhà", "пример", "例え", "한국어", "ไทย", "العربية",
    "हिन्दी", "שלום",
]  # fmt: skip


def word(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(WORDS)
    if kind < 0.5:
        return rng.choice(ODD)
    if kind < 0.8:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 12)))
    if kind < 0.9:
        return rng.choice([*WORDS, *ODD]) * rng.randint(2, 30)
    return "".join(rng.choice(" abcABC019'.,\n") for _ in range(rng.randint(1, 40)))


def random_texts(n: int, seed: int, longest: int = 12) -> Iterator[str]:
    """Yield ``n`` random texts of up to ``longest`` parts each."""
    rng = random.Random(seed)
    for _ in range(n):
        glue = rng.choice(["", " ", "", "\n"])
        yield glue.join(word(rng) for _ in range(rng.randint(0, longest)))


def every_character() -> Iterator[str]:
    """Yield texts with each assigned character once, between letters, digits and spaces."""
    for first in [*range(0, 0x32400, 64), *range(0xE0000, 0xE0200, 64), 0xF0000, 0x10FFC0]:
        codes = [code for code in range(first, first + 64) if not 0xD800 <= code < 0xE000]
        yield "".join(f"a{chr(code)}1 {chr(code)}." for code in codes)
