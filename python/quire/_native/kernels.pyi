"""Instruction sets of the CPU kernels."""

from typing import final

def supported_isas() -> list[str]:
    """Those that this machine runs, the best last: of ``portable``, ``neon``, ``neoni8mm``, ``avx2``, ``avx2vnni``,
    ``avx512``, ``avx512vnni``, ``avx512bf16``, ``avx512amx``.

    ``avx2vnni`` is AVX2 with AVX-VNNI, which some machines with AVX-512 lack; ``avx512bf16`` is ``avx512vnni``
    with products of BF16, for weights of which it rounds activations to BF16, and ``avx512amx`` is ``avx512bf16`` with
    tiles of bytes.
    """

def emulated_isas() -> list[str]:
    """Those that ``KernelSet`` takes, too, and that compute in software what this machine may lack, for tests.

    ``avx512amx-emulated``, on machines with AVX-512 VNNI and in builds with ``QUIRE_EMULATED_TILES``.
    """

@final
class KernelSet:
    """What an executor computes with: an instruction set, and whether a row's bits may depend on what is computed
    beside.

    ``isa``: None is ``QUIRE_ISA`` of the environment, else the best of this machine.  ``deterministic``: None is False,
    unless ``QUIRE_DETERMINISTIC=1`` is in the environment.  Raises UnsupportedError if there is no such set or this
    machine does not run it.
    """

    def __init__(self, isa: str | None = None, *, deterministic: bool | None = None) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def is_deterministic(self) -> bool: ...
    @property
    def determinism_costs(self) -> bool:
        """Whether that makes a difference here: where many rows are multiplied by tiles."""
    @property
    def multiplies_bf16(self) -> bool:
        """Whether there are products of BF16."""
