"""Instruction sets of the CPU kernels."""

from typing import final

def supported_isas() -> list[str]:
    """Return the instruction sets that this machine and this build support, the best one last.

    They are ``portable``, ``neon``, ``neoni8mm``, ``avx2``, ``avx2vnni``, ``avx512``, ``avx512vnni``, ``avx512bf16``
    and ``avx512amx``.  ``avx2vnni`` is AVX2 with AVX-VNNI, which some machines with AVX-512 lack.  ``avx512bf16`` is
    ``avx512vnni`` with products of BF16, which round activations to BF16 for BF16 weights.  ``avx512amx`` is
    ``avx512bf16`` with tiles.
    """

def emulated_isas() -> list[str]:
    """Return instruction sets for tests that ``KernelSet`` accepts, too, and that run in software.

    They are ``avx512amx-emulated``, on machines with AVX-512 VNNI and in builds with ``QUIRE_EMULATED_TILES``.
    """

@final
class KernelSet:
    """The kernels of an executor.

    Args:
        isa: The instruction set; None means the environment's ``QUIRE_ISA``, or the best one of this machine.
        deterministic: A row's bits do not depend on the rows computed with it; None means False, unless the environment
            has ``QUIRE_DETERMINISTIC=1``.

    Raises:
        UnsupportedError: The instruction set is unknown, or this machine or build lacks it.
    """

    def __init__(self, isa: str | None = None, *, deterministic: bool | None = None) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def is_deterministic(self) -> bool: ...
    @property
    def determinism_costs(self) -> bool:
        """True if determinism makes products of many rows slower on this instruction set."""
    @property
    def multiplies_bf16(self) -> bool:
        """True if the kernels multiply BF16."""
