"""The mixes of types of llama.cpp's quantizer.

A mix has a type for most tensors, and exceptions that depend on a tensor's role and the position of its layer.  With
the same file, mix and importance matrix each tensor gets the type that llama.cpp gives it, so the files of both are
equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RequestError

__all__ = ["ALIASES", "COPY", "MIXES", "Mix", "mix_named"]


@dataclass(frozen=True)
class Mix:
    """A mix; ``file_type`` is its number in ``general.file_type``, ``dtype`` the type of most tensors."""

    name: str
    file_type: int
    dtype: str

    @property
    def is_quantized(self) -> bool:
        """True if the type has blocks; exceptions and fallbacks apply only to these."""
        return self.dtype not in ("f32", "f16", "bf16")


COPY = "COPY"
MIXES = {
    mix.name: mix
    for mix in (
        Mix("Q1_0", 40, "q1_0"), Mix("Q2_0", 41, "q2_0"),
        Mix("Q4_0", 2, "q4_0"), Mix("Q4_1", 3, "q4_1"), Mix("MXFP4_MOE", 38, "mxfp4"),
        Mix("Q5_0", 8, "q5_0"), Mix("Q5_1", 9, "q5_1"), Mix("Q8_0", 7, "q8_0"),
        Mix("IQ2_XXS", 19, "iq2_xxs"), Mix("IQ2_XS", 20, "iq2_xs"), Mix("IQ2_S", 28, "iq2_xs"),
        Mix("IQ2_M", 29, "iq2_s"), Mix("IQ1_S", 24, "iq1_s"), Mix("IQ1_M", 31, "iq1_m"),
        Mix("TQ1_0", 36, "tq1_0"), Mix("TQ2_0", 37, "tq2_0"),
        Mix("Q2_K", 10, "q2_k"), Mix("Q2_K_S", 21, "q2_k"),
        Mix("IQ3_XXS", 23, "iq3_xxs"), Mix("IQ3_S", 26, "iq3_s"), Mix("IQ3_M", 27, "iq3_s"), Mix("IQ3_XS", 22, "iq3_s"),
        Mix("Q3_K_S", 11, "q3_k"), Mix("Q3_K_M", 12, "q3_k"), Mix("Q3_K_L", 13, "q3_k"),
        Mix("IQ4_NL", 25, "iq4_nl"), Mix("IQ4_XS", 30, "iq4_xs"),
        Mix("Q4_K_S", 14, "q4_k"), Mix("Q4_K_M", 15, "q4_k"),
        Mix("Q5_K_S", 16, "q5_k"), Mix("Q5_K_M", 17, "q5_k"), Mix("Q6_K", 18, "q6_k"),
        Mix("F16", 1, "f16"), Mix("BF16", 32, "bf16"), Mix("F32", 0, "f32"),
    )
}  # fmt: skip
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def mix_named(name: str) -> Mix:
    """Return the mix with this name, ignoring case.  Raises RequestError for an unknown name."""
    upper = name.upper()
    found = MIXES.get(ALIASES.get(upper, upper))
    if found is None:
        raise RequestError(f"[quantize] unknown type '{name:.40}': expected one of {', '.join((*MIXES, COPY))}")
    return found
