"""Paged attention on the CPU.  Oracle: attention in float64 with NumPy, on the values that the cache stores."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import chosen, using
from quire._native import kernels, testing
from quire.errors import ShapeError, UnsupportedError

BLOCK = 32
TYPES = ["f32", "f16", "bf16", "q8"]
# Types of 4 and 5 bits, and different ones for K and V.
LOW_BITS = ["q4_0", "q5_1", "q8/q4_0", "q4_0/q8", "q5_1/f16", "f16/q4_0", "q8/f16", "f16/q8", "q4_0/q5_1"]
GGML_TYPES = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q5_1": gguf.GGMLQuantizationType.Q5_1}
Array = npt.NDArray[np.float32]


ISAS = [*kernels.supported_isas(), *kernels.emulated_isas()]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with using(request.param):
        yield request.param


@dataclass(frozen=True)
class Shape:
    n_head: int = 4
    n_kv_head: int = 2
    head_dim: int = 64
    v_head_dim: int = 64
    soft_cap: float | None = None
    window: int | None = None
    sinks: bool = False
    n_bias: int = 0  # number of distances with their own bias
    kv_type: str = "f16"  # or K/V
    magnitude: float = 1.0
    v_in_k: bool = False  # latent attention: values are the first dimensions of the keys, and have no pool

    @property
    def k_type(self) -> str:
        return self.kv_type.partition("/")[0]

    @property
    def v_type(self) -> str:
        return self.kv_type.rpartition("/")[2]

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


def bf16_bits(x: Array) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def together(dim: int, n_values: int | None = None) -> int:
    """The number of dimensions rotated together; 32 if the first ``n_values`` of them are values."""
    return dim & -dim if n_values is None else 32


def rotation(x: Array, n_values: int | None = None) -> Array:
    """The Hadamard transform of each head in single precision, with a fixed order of sums."""
    n = together(x.shape[-1], n_values)
    blocks, half = x.reshape(*x.shape[:-1], -1, n), 1
    while half < n:
        pairs = blocks.reshape(*blocks.shape[:-1], n // (2 * half), 2, half)
        sums = pairs[..., :1, :] + pairs[..., 1:, :], pairs[..., :1, :] - pairs[..., 1:, :]
        blocks, half = np.concatenate(sums, axis=-2).reshape(blocks.shape), 2 * half
    return (blocks * (np.float32(1) / np.sqrt(np.float32(n)))).reshape(x.shape)


def exact_rotation(x: npt.NDArray[np.float64], n_values: int | None = None) -> npt.NDArray[np.float64]:
    """The Hadamard transform by its matrix, in double precision."""
    n, matrix = together(x.shape[-1], n_values), np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (x.reshape(*x.shape[:-1], -1, n) @ matrix / np.sqrt(n)).reshape(x.shape)


def stored(x: Array, kv_type: str, n_values: int | None = None) -> npt.NDArray[np.float64]:
    """Return x after storing it in a cache of this type."""
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float64)
    if kv_type == "bf16":
        return (bf16_bits(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kv_type == "q8":
        codes, scales = q8_codes(x)
        return codes.astype(np.float64) * scales
    if kv_type in GGML_TYPES:  # after the rotation, codes are ggml's
        kind = GGML_TYPES[kv_type]
        rotated = gguf.dequantize(gguf.quantize(rotation(x, n_values), kind), kind)
        return exact_rotation(rotated.astype(np.float64), n_values)
    return x.astype(np.float64)


def q8_codes(x: Array) -> tuple[npt.NDArray[np.int8], Array]:
    """Codes of -127 to 127 with one scale for the last axis: the largest magnitude becomes 127."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 1e-30)
    scales = np.where(largest > 1e-30, largest / np.float32(127), np.float32(0))
    return np.rint(x * inverse).astype(np.int8), scales


def multiplies_pairs(kv_type: str) -> bool:
    """True if queries and weights are rounded to BF16, too, and subnormal numbers count as zero."""
    return kv_type == "bf16" and chosen().isa in ("avx512bf16", "avx512amx", "avx512amx-emulated")


def multiplied(x: Array, kv_type: str, n_values: int | None = None) -> npt.NDArray[np.float64]:
    """Return the numbers of a cache as the instructions see them."""
    found = stored(x, kv_type, n_values)
    return np.where(np.abs(found) < 2.0**-126, 0.0, found) if multiplies_pairs(kv_type) else found


def empty_pool(shape: tuple[int, ...], kv_type: str, rng: np.random.Generator) -> npt.NDArray[np.generic]:
    """Return a pool filled with infinities, NaN and large numbers, as uninitialised memory may contain anything."""
    if kv_type == "q8":
        return rng.choice(np.array([np.nan, np.inf, 3e4], np.float32).view(np.int8), shape)
    if kv_type in GGML_TYPES:
        return rng.choice(np.array([np.nan, np.inf, 3e4], np.float16).view(np.uint8), shape)
    trash = rng.choice(np.array([np.nan, np.inf, -np.inf, 3e4], np.float32), shape)
    if kv_type == "bf16":
        return bf16_bits(trash)
    return trash.astype(np.float16 if kv_type == "f16" else np.float32)


def q8_bytes(dim: int) -> int:
    """The bytes of a block: codes, and a float per token."""
    return BLOCK * (-(-dim // 4) * 4 + 4)


def pool_shape(dim: int, kv_type: str, *, are_keys: bool) -> tuple[int, ...]:
    """The bytes of one block and head."""
    if kv_type == "q8":
        return (q8_bytes(dim),)
    if kv_type in GGML_TYPES:
        return (dim * {"q4_0": 18, "q5_1": 24}[kv_type],)
    return (dim, BLOCK) if are_keys else (BLOCK, dim)


@dataclass
class Sequence:
    """One sequence: queries, keys and values of every position, and its blocks."""

    q: Array
    k: Array
    v: Array
    table: list[int]
    n_cached: int = 0
    images: tuple[tuple[int, int], ...] = ()  # begin and end of images, whose rows see all of them

    def last_visible(self) -> npt.NDArray[np.int64]:
        last = np.arange(len(self.q))
        for begin, end in self.images:
            last[begin:end] = end - 1
        return last


@dataclass
class Cache:
    """A pool with sequences in it, and runs of steps over them."""

    shape: Shape
    seed: int = 0
    n_blocks: int = 64
    sequences: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        s, self.rng = self.shape, np.random.default_rng(self.seed)
        sizes = (self.n_blocks, s.n_kv_head)
        k_shape = pool_shape(s.head_dim, s.k_type, are_keys=True)
        v_shape = pool_shape(s.v_head_dim, s.v_type, are_keys=False)
        self.k_pool = empty_pool((*sizes, *k_shape), s.k_type, self.rng)
        self.v_pool = None if s.v_in_k else empty_pool((*sizes, *v_shape), s.v_type, self.rng)
        self.free = [int(i) for i in self.rng.permutation(np.arange(1, self.n_blocks))]
        self.sinks = np.random.default_rng(9).normal(size=s.n_head).astype(np.float32) if s.sinks else None
        columns = np.random.default_rng(10).normal(size=(s.n_head, s.n_bias)).astype(np.float32)
        self.bias = columns if s.n_bias else None

    def add(self, n_tokens: int, seed: int) -> Sequence:
        s, rng = self.shape, np.random.default_rng(seed)

        def rows(n_head: int, dim: int) -> Array:
            return (rng.normal(size=(n_tokens, n_head, dim)) * s.magnitude).astype(np.float32)

        blocks = [self.free.pop() for _ in range(-(-n_tokens // BLOCK))]
        sequence = Sequence(
            rows(s.n_head, s.head_dim), rows(s.n_kv_head, s.head_dim), rows(s.n_kv_head, s.v_head_dim), blocks
        )
        if s.v_in_k:
            sequence.v = sequence.k[..., : s.v_head_dim]
        self.sequences.append(sequence)
        return sequence

    def fork(self, parent: Sequence, n_shared: int, n_tokens: int, seed: int) -> Sequence:
        """Add a sequence of ``n_tokens`` that shares its first ``n_shared`` tokens, whole blocks, with the parent."""
        sequence = self.add(n_tokens, seed)
        n_blocks = n_shared // BLOCK
        assert n_shared == n_blocks * BLOCK <= parent.n_cached
        self.free += sequence.table[:n_blocks]
        sequence.table[:n_blocks] = parent.table[:n_blocks]
        for name in ("q", "k", "v"):
            getattr(sequence, name)[:n_shared] = getattr(parent, name)[:n_shared]
        sequence.n_cached = n_shared
        return sequence

    def step(self, work: list[tuple[Sequence, int]], n_workers: int = 1, n_padding: int = 0) -> list[Array]:
        """Write the next tokens of each sequence and attend; return an array of outputs per sequence."""
        row_begin, n_kv, slots, last_visible = [0], [], [], []
        for sequence, n in work:
            row_begin.append(row_begin[-1] + n)
            n_kv.append(sequence.n_cached + n)
            positions = range(sequence.n_cached, sequence.n_cached + n)
            slots += [sequence.table[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
            last_visible += sequence.last_visible()[positions].tolist()
        tables = [sequence.table for sequence, _ in work]
        batch = testing.AttentionBatch(
            row_begin=row_begin,
            n_kv=n_kv,
            tables=tables,
            slots=slots,
            last_visible=last_visible if any(sequence.images for sequence, _ in work) else [],
        )

        def gather(name: str) -> Array:
            parts = [getattr(each, name)[each.n_cached : each.n_cached + n] for each, n in work]
            return np.concatenate(parts)

        v = None if self.shape.v_in_k else gather("v")
        testing.kv_write(chosen(), gather("k"), v, self.k_pool, self.v_pool, batch, n_workers)
        q = gather("q")
        q = np.concatenate([q, np.full((n_padding, *q.shape[1:]), np.nan, np.float32)])
        s = self.shape
        out = testing.paged_attention(chosen(),
            q, self.k_pool, self.v_pool, batch,
            scale=s.scale, soft_cap=s.soft_cap, window=s.window, sinks=self.sinks, bias=self.bias, v_head_dim=s.v_head_dim,
            n_workers=n_workers,
        )  # fmt: skip
        assert not out[row_begin[-1] :].any()
        for sequence, n in work:
            sequence.n_cached += n
        return [out[begin:end] for begin, end in itertools.pairwise(row_begin)]

    def oracle(self, sequence: Sequence, last: int | None = None) -> npt.NDArray[np.float64]:
        """Compute all rows of the sequence, or the last ones, in float64."""
        s, n_kv = self.shape, len(sequence.q)
        n = n_kv if last is None else last
        n_values = s.v_head_dim if s.v_in_k else None
        k = multiplied(sequence.k, s.k_type, n_values)
        # A row of an 8-bit cache has one scale.
        v = k[..., : s.v_head_dim] if s.v_in_k else multiplied(sequence.v, s.v_type)
        rows = sequence.q[n_kv - n :]
        q = rows.astype(np.float64)
        if s.k_type == "q8":
            q = stored(rows, "q8")
        elif s.k_type in GGML_TYPES:
            q = exact_rotation(stored(rotation(rows, n_values), "q8"), n_values)
        elif multiplies_pairs(s.kv_type):
            factor = np.float32(s.scale) * np.float32(1 if s.soft_cap else np.log2(np.e))
            q = multiplied(rows * factor, "bf16") / factor
        keys = np.arange(n_kv)
        queries = keys[n_kv - n :]
        hidden = keys[None, :] > sequence.last_visible()[queries, None]
        if s.window is not None:
            hidden |= keys[None, :] <= queries[:, None] - s.window
        out = np.zeros((n, s.n_head, s.v_head_dim))
        for head in range(s.n_head):
            kv_head = head // (s.n_head // s.n_kv_head)
            scores = q[:, head] @ k[:, kv_head].T * s.scale
            if s.soft_cap is not None:
                scores = s.soft_cap * np.tanh(scores / s.soft_cap)
            if self.bias is not None:
                columns = s.n_bias - 1 - (queries[:, None] - keys[None, :])
                scores = scores + self.bias[head, columns.clip(0, s.n_bias - 1)]
            scores[hidden] = -np.inf
            if self.sinks is not None:
                scores = np.concatenate([scores, np.full((n, 1), np.float64(self.sinks[head]))], axis=1)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, head] = weights[:, :n_kv] @ v[:, kv_head]
        return out


def error_of_weights(shape: Shape) -> float:
    """A weight rounded to BF16 has a relative error of at most 2^-8, up or down, and so has their sum."""
    return 2.0**-8 if multiplies_pairs(shape.kv_type) else 0.0


def assert_close(found: Array, wanted: npt.NDArray[np.float64], tolerance: float = 2e-6) -> None:
    error = np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30)
    assert error < tolerance, f"error {error:.2e} of the largest value"


@pytest.mark.parametrize("kv_type", [*TYPES, "q4_0", "q8/q5_1"])
@pytest.mark.parametrize("window", [None, 40])
def test_rows_of_images_see_all_of_them(isa: str, kv_type: str, window: int | None) -> None:
    """Whole, in steps, after cached rows of the same image, beside others and with shared blocks: the same bits."""
    shape = Shape(n_head=6, head_dim=32, v_head_dim=64, soft_cap=20.0, window=window, kv_type=kv_type)
    cache = Cache(shape)
    root, other = cache.add(230, seed=1), cache.add(150, seed=2)
    root.images, other.images = ((0, 3), (20, 90), (90, 91), (100, 220)), ((10, 140),)
    (whole,) = cache.step([(root, 230)])
    bound = 2e-6 + error_of_weights(shape)
    assert_close(whole, cache.oracle(root), 3e-5 if kv_type in ("q4_0", "q8/q5_1") else bound)
    (alone,) = cache.step([(other, 150)])
    assert_close(alone, cache.oracle(other), 3e-5 if kv_type in ("q4_0", "q8/q5_1") else bound)
    child = cache.fork(root, 192, 230, seed=1)
    child.images = root.images
    root.n_cached = other.n_cached = 0
    for n_workers, rest in ((1, 130), (3, 70), (2, 30)):  # the last ones begin within an image that is cached
        root.n_cached, other.n_cached, child.n_cached = 230 - rest, 10, 192
        mine, theirs, shared = cache.step([(root, rest), (other, 140), (child, 38)], n_workers)
        for found, wanted in ((mine, whole[230 - rest :]), (theirs, alone[10:]), (shared, whole[192:])):
            np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_an_image_beyond_the_cached_tokens_is_refused() -> None:
    sizes = {"row_begin": [0, 2], "n_kv": [5], "tables": [[1]], "slots": [35, 36]}
    for last_visible in ([3], [2, 4], [4, 5], [4, 3]):
        with pytest.raises(ShapeError, match=r"last_visible has 1|sees up to"):
            testing.AttentionBatch(**sizes, last_visible=last_visible)  # type: ignore[arg-type]


def test_soft_cap_of_any_score(isa: str) -> None:
    """The cap is as exact as the scores: single keys with scores from 1e-6 to 1e6."""
    cache = Cache(Shape(kv_type="f32", head_dim=1, v_head_dim=1, n_head=1, n_kv_head=1, soft_cap=30.0, sinks=True))
    sequence = cache.add(32, seed=7)
    sequence.q[:] = 1
    sequence.k[:, 0, 0] = np.geomspace(1e-6, 1e6, 32) * np.array([1, -1]).repeat(16)
    (out,) = cache.step([(sequence, 32)])
    assert_close(out, cache.oracle(sequence))


def check(shape: Shape, n_tokens: int = 70, n_blocks: int = 64) -> None:
    cache = Cache(shape, n_blocks=n_blocks)
    sequence = cache.add(n_tokens, seed=1)
    (whole,) = cache.step([(sequence, n_tokens)])
    # Scores of magnitude m have errors of m * 2^-24, which exp turns into relative errors of the weights.
    assert_close(whole, cache.oracle(sequence), 2e-6 * max(1.0, shape.magnitude**2) + error_of_weights(shape))


HEAD_DIMS = [(1, 1), (3, 3), (20, 20), (64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (256, 256)]


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize(("head_dim", "v_head_dim"), [*HEAD_DIMS, (576, 512), (33, 71), (2, 17)])
def test_every_head_size(isa: str, kv_type: str, head_dim: int, v_head_dim: int) -> None:
    check(Shape(head_dim=head_dim, v_head_dim=v_head_dim, kv_type=kv_type))


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("window", [None, 1, 6, 31])
@pytest.mark.parametrize(("n_head", "v_head_dim"), [(1, 1), (2, 17), (3, 32), (14, 49), (14, 80)])
def test_means_of_values(isa: str, kv_type: str, window: int | None, n_head: int, v_head_dim: int) -> None:
    """If all scores are equal, every weight is exactly 1."""
    shape = Shape(n_head=n_head, n_kv_head=1, head_dim=5, v_head_dim=v_head_dim, window=window, kv_type=kv_type)
    cache = Cache(shape)
    sequence = cache.add(75, seed=1)
    sequence.q[:] = 0
    outs = [cache.step([(sequence, n)])[0] for n in (1, 33, 41)]
    assert_close(np.concatenate(outs), cache.oracle(sequence))


FEW_BITS_SHAPES = [
    Shape(head_dim=32, v_head_dim=32, n_head=2),
    Shape(n_head=14, n_kv_head=2, window=37),
    Shape(head_dim=96, v_head_dim=64, n_head=33, n_kv_head=3, n_bias=50, sinks=True),
    Shape(head_dim=256, v_head_dim=128, soft_cap=3.0, n_head=8, n_kv_head=8, magnitude=1e-3),
    Shape(head_dim=128, v_head_dim=256, n_head=3, n_kv_head=1, magnitude=10.0),
    Shape(n_head=9, n_kv_head=1, head_dim=576, v_head_dim=512, v_in_k=True, window=50),
]


# Every pair of types with one shape, every shape with the same type for K and V.
@pytest.mark.parametrize(
    ("shape", "kv_type"),
    [
        (shape, kv_type)
        for i, shape in enumerate(FEW_BITS_SHAPES)
        for kv_type in LOW_BITS
        if i == 2 or "/" not in kv_type
    ],
    ids=lambda one: f"{one.head_dim}-{one.v_head_dim}" if isinstance(one, Shape) else one,
)
def test_four_and_five_bits(isa: str, shape: Shape, kv_type: str) -> None:
    """Prompts and single rows.  Rotated rows have ggml's codes, so the oracle is gguf's own quantization of them."""
    cache = Cache(replace(shape, kv_type=kv_type))
    sequence = cache.add(190, seed=1)
    outs = [cache.step([(sequence, n)], n_workers=2)[0] for n in (1, 33, 155, 1)]
    assert_close(np.concatenate(outs), cache.oracle(sequence), 2e-6 * max(1.0, shape.magnitude**2))


@pytest.mark.parametrize("kv_type", ["q4_0", "q5_1"])
def test_four_and_five_bits_with_nan_infinity_and_zero_scales(isa: str, kv_type: str) -> None:
    cache = Cache(Shape(kv_type=kv_type))
    sequence = cache.add(80, seed=5)
    sequence.k[10, 0], sequence.v[20, 0] = 0, 1e-25
    wanted = cache.oracle(sequence)
    sequence.k[40, 0, 7], sequence.v[50, 1, 40] = np.nan, np.inf
    (out,) = cache.step([(sequence, 80)])
    assert_close(out[:40], wanted[:40])
    assert np.isnan(out[40:, :2]).all()
    assert np.isfinite(out[40:50, 2:]).all()
    assert not np.isfinite(out[50:, 2:]).any()


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 33, 71])
@pytest.mark.parametrize("kv_type", TYPES)
def test_every_group_size(isa: str, kv_type: str, group: int) -> None:
    check(Shape(n_head=2 * group, n_kv_head=2, head_dim=20, v_head_dim=12, kv_type=kv_type))


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 50, 64, 1000])
def test_windows(isa: str, kv_type: str, window: int) -> None:
    check(Shape(head_dim=16, v_head_dim=16, window=window, kv_type=kv_type), n_tokens=130)


@pytest.mark.parametrize("soft_cap", [0.5, 5.0, 50.0])
def test_soft_cap(isa: str, soft_cap: float) -> None:
    check(Shape(head_dim=20, v_head_dim=20, soft_cap=soft_cap, kv_type="f32"))


@pytest.mark.parametrize("window", [None, 5, 40])
def test_sinks(isa: str, window: int | None) -> None:
    check(Shape(sinks=True, window=window))


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("n_bias", [1, 20, 400])
def test_bias_by_distance(isa: str, n_bias: int, kv_type: str) -> None:
    check(Shape(head_dim=24, v_head_dim=16, n_bias=n_bias, kv_type=kv_type), n_tokens=180)


def test_everything_at_once(isa: str) -> None:
    shape = Shape(n_head=9, n_kv_head=3, head_dim=40, v_head_dim=24, soft_cap=3.0, window=37, sinks=True, n_bias=50)
    check(shape, n_tokens=200)


MAGNITUDES = [(t, m) for t in TYPES for m in (1e-20, 1e-3, 10.0) if (t, m) != ("f16", 1e-20)]


@pytest.mark.parametrize(("kv_type", "magnitude"), MAGNITUDES)
def test_magnitudes(isa: str, kv_type: str, magnitude: float) -> None:
    check(Shape(magnitude=magnitude, kv_type=kv_type))


TINY_AND_HUGE = {"f32": (1e-38, 1e36), "f16": (1e-6, 1e4), "bf16": (1e-38, 1e36), "q8": (1e-28, 1e36)}


@pytest.mark.parametrize("kv_type", TYPES)
def test_subnormal_keys_and_huge_values(isa: str, kv_type: str) -> None:
    """Scores are ordinary, because queries are as large as keys are small; most keys are subnormal in 16 bits."""
    tiny, huge = TINY_AND_HUGE[kv_type]
    cache = Cache(Shape(head_dim=24, v_head_dim=40, kv_type=kv_type))
    sequence = cache.add(70, seed=1)
    sequence.k *= np.float32(tiny)
    sequence.q *= np.float32(min(1 / tiny, 3e37))
    sequence.v *= np.float32(huge)
    (out,) = cache.step([(sequence, 70)])
    assert_close(out, cache.oracle(sequence), 2e-6 + error_of_weights(cache.shape))


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("sizes", [(16, 576, 512), (3, 53, 50), (20, 40, 33), (1, 7, 7)])
def test_values_that_are_part_of_the_keys(isa: str, sizes: tuple[int, int, int], kv_type: str) -> None:
    """Latent attention (MLA): one kv head with keys of 576 dimensions, the first 512 of which are the values."""
    n_head, head_dim, v_head_dim = sizes
    shape = Shape(
        n_head=n_head, n_kv_head=1, head_dim=head_dim, v_head_dim=v_head_dim, kv_type=kv_type, window=50, v_in_k=True
    )
    cache = Cache(shape)
    sequence = cache.add(75, seed=1)
    outs = [cache.step([(sequence, n)])[0] for n in (40, 1, 34)]
    assert_close(np.concatenate(outs), cache.oracle(sequence), 2e-6 + error_of_weights(shape))


@pytest.mark.slow
def test_long_context(isa: str) -> None:
    shape = Shape(n_head=2, n_kv_head=1, head_dim=32, v_head_dim=32, kv_type="bf16")
    cache = Cache(shape, n_blocks=130)
    sequence = cache.add(4000, seed=3)
    outs = [cache.step([(sequence, n)], n_workers=2)[0] for n in (1500, 1500, 999, 1)]
    assert_close(np.concatenate(outs), cache.oracle(sequence), 2e-6 + error_of_weights(shape))


def test_large_scores_leave_one_token(isa: str) -> None:
    """With scores in the thousands, the largest gets all the weight, without overflow."""
    cache = Cache(Shape(kv_type="f32", head_dim=8, v_head_dim=8))
    sequence = cache.add(65, seed=4)
    sequence.q[:] = 1000
    sequence.k[:] = np.arange(65, dtype=np.float32)[:, None, None] % 40
    (out,) = cache.step([(sequence, 65)])
    best = [max(range(p + 1), key=lambda t: t % 40) for p in range(39)]
    np.testing.assert_array_equal(out[:39, 0], sequence.v[best, 0])
    assert np.isfinite(out).all()


@pytest.mark.parametrize("kv_type", TYPES)
def test_a_latent_row_that_is_not_finite_affects_only_rows_that_see_it(isa: str, kv_type: str) -> None:
    for window in (None, 20):
        cache = Cache(
            Shape(n_head=9, n_kv_head=1, kv_type=kv_type, head_dim=40, v_head_dim=34, window=window, v_in_k=True)
        )
        sequence = cache.add(80, seed=5)
        sequence.k[40, 0, 3] = np.nan
        out = np.concatenate([cache.step([(sequence, n)])[0] for n in (70, 1, 9)])
        last = 80 if window is None else 40 + window
        assert np.isfinite(out[:40]).all()
        assert not np.isfinite(out[40:last]).any(axis=-1).all()
        assert np.isfinite(out[last:]).all()


@pytest.mark.parametrize("kv_type", TYPES)
def test_a_nan_affects_only_rows_that_see_it(isa: str, kv_type: str) -> None:
    cache = Cache(Shape(kv_type=kv_type, head_dim=12, v_head_dim=12))
    sequence = cache.add(80, seed=5)
    sequence.k[40, 0] = np.nan
    sequence.v[50, 1] = np.inf
    (out,) = cache.step([(sequence, 80)])
    assert np.isfinite(out[:40]).all()
    assert np.isnan(out[40:, :2]).all()
    assert np.isfinite(out[40:50, 2:]).all()
    assert not np.isfinite(out[50:, 2:]).any()


@pytest.mark.parametrize(
    ("kv_type", "v_in_k"),
    [*itertools.product((*TYPES, "q4_0"), (False, True)), ("q5_1", False), ("q8/q4_0", False), ("f16/q5_1", False)],
)
def test_bits_do_not_depend_on_batch_chunks_or_workers(isa: str, v_in_k: bool, kv_type: str) -> None:
    shape = Shape(n_head=6, n_kv_head=2, head_dim=36, v_head_dim=20, window=70, sinks=True, kv_type=kv_type)
    if kv_type not in TYPES:
        shape = replace(shape, head_dim=64, v_head_dim=32)
    if v_in_k:
        shape = replace(shape, n_head=9, n_kv_head=1, v_in_k=True)

    def alone(n_tokens: int, seed: int) -> Array:
        cache = Cache(shape)
        return cache.step([(cache.add(n_tokens, seed), n_tokens)])[0]

    lengths = [150, 33, 97, 5]
    wanted = [alone(n, seed=i) for i, n in enumerate(lengths)]
    for trial in range(6):
        cache = Cache(shape, seed=trial + 10)
        rng = np.random.default_rng(trial)
        sequences = [cache.add(n, seed=i) for i, n in enumerate(lengths)]
        found: list[list[Array]] = [[] for _ in lengths]
        while True:
            left = [i for i, each in enumerate(sequences) if each.n_cached < len(each.q)]
            if not left:
                break
            chosen = rng.permutation(left)[: rng.integers(1, len(left) + 1)]
            most = [len(sequences[i].q) - sequences[i].n_cached for i in chosen]
            counts = [int(rng.choice([1, rng.integers(1, n + 1)])) for n in most]
            work = [(sequences[i], n) for i, n in zip(chosen, counts, strict=True)]
            outs = cache.step(work, n_workers=int(rng.integers(1, 4)), n_padding=int(rng.integers(0, 3)))
            for i, out in zip(chosen, outs, strict=True):
                found[i].append(out)
        for parts, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(np.concatenate(parts).view(np.uint32), want.view(np.uint32))


@functools.cache
def oracle_of_a_prompt(shape: Shape, n_tokens: int, seed: int, pairs: bool) -> npt.NDArray[np.float64]:
    """Run slow tests once for all instruction sets with the same arithmetic."""
    assert pairs == multiplies_pairs(shape.kv_type)
    cache = Cache(shape, n_blocks=n_tokens // BLOCK + 2)
    return cache.oracle(cache.add(n_tokens, seed))


@pytest.mark.parametrize(
    ("kv_type", "n_head", "window", "v_in_k"),
    [
        ("f32", 3, 1100, False),
        pytest.param("bf16", 9, None, True, marks=pytest.mark.slow),
        pytest.param("f32", 3, None, False, marks=pytest.mark.slow),
        pytest.param("bf16", 8, 1100, False, marks=pytest.mark.slow),
        pytest.param("q8", 8, 1100, False, marks=pytest.mark.slow),
    ],
)
def test_bits_do_not_depend_on_sharing_or_splitting(
    isa: str, window: int | None, kv_type: str, n_head: int, v_in_k: bool
) -> None:
    """Sequences that share a prefix of blocks over several chunks, together and alone."""
    shape = Shape(n_head=n_head, n_kv_head=1, head_dim=12, v_head_dim=20, window=window, kv_type=kv_type)
    if v_in_k:
        shape = replace(shape, head_dim=26, v_in_k=True)
    bound = {"f32": 4e-6, "f16": 4e-6}.get(kv_type, 4e-2)
    cache = Cache(shape, n_blocks=400)
    root = cache.add(2300, seed=1)
    (whole,) = cache.step([(root, 2300)])
    wanted = oracle_of_a_prompt(shape, 2300, 1, multiplies_pairs(kv_type))
    np.testing.assert_array_less(np.abs(whole - wanted).max(), bound)
    sequences = [root]
    forks = [(2272, 30), (2272, 2), (1056, 900), (128, 40), (128, 200), (96, 20), (2272, 11), (2272, 25), (2272, 4)]
    for i, (n_shared, n_more) in enumerate(forks):
        child = cache.fork(sequences[max(0, i - 1)] if i == 5 else root, n_shared, n_shared + n_more, seed=i + 2)
        cache.step([(child, n_more - 1)])
        sequences.append(child)
    sequences.append(cache.add(1, seed=20))

    def last_rows(chosen: list[int], n_workers: int) -> list[Array]:
        for i in chosen:
            sequences[i].n_cached = len(sequences[i].q) - 1
        return cache.step([(sequences[i], 1) for i in chosen], n_workers)

    alone = [last_rows([i], 1)[0] for i in range(len(sequences))]
    np.testing.assert_array_equal(alone[0], whole[-1:])
    for sequence, out in zip(sequences, alone, strict=True):
        assert_close(out, cache.oracle(sequence, last=1), bound)
    rng = np.random.default_rng(3)
    for n_workers in (1, 2, 3):
        chosen = [int(i) for i in rng.permutation(len(sequences))]
        for i, out in zip(chosen, last_rows(chosen, n_workers), strict=True):
            np.testing.assert_array_equal(out, alone[i], err_msg=f"sequence {i}")


@pytest.mark.slow
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize(("n_head", "n_kv_head", "window"), [(8, 8, None), (10, 5, 700), (64, 8, None), (72, 8, 90)])
def test_a_single_row_equals_the_row_in_its_prompt(
    isa: str, kv_type: str, n_head: int, n_kv_head: int, window: int | None
) -> None:
    """Several kv heads for one row, or one for many rows, give the same bits with any number of workers."""
    shape = Shape(n_head=n_head, n_kv_head=n_kv_head, head_dim=8, v_head_dim=20, window=window, kv_type=kv_type)
    cache = Cache(shape, n_blocks=50)
    sequence = cache.add(1107, seed=4)
    (whole,) = cache.step([(sequence, 1107)], n_workers=2)
    assert np.isfinite(whole).all()
    for n_tokens in (1107, 1025, 512, 131, 1):
        for n_workers in (1, 2, 3, 6):
            sequence.n_cached = n_tokens - 1
            (row,) = cache.step([(sequence, 1)], n_workers)
            np.testing.assert_array_equal(row[0].view(np.uint32), whole[n_tokens - 1].view(np.uint32))


@pytest.mark.usefixtures("free", "isa")
@pytest.mark.parametrize("isa", [isa for isa in ISAS if "amx" in isa], indirect=True)
@pytest.mark.parametrize("window", [None, 300])
def test_few_queries_and_many(window: int | None) -> None:
    """Decoding rows of several sequences, some with shared blocks, next to a prompt."""
    for n_head, head_dim, n_workers in ((2, 64, 1), (8, 128, 2), (10, 33, 3), (16, 20, 2)):
        shape = Shape(n_head=n_head, n_kv_head=2, head_dim=head_dim, v_head_dim=40, window=window, kv_type="bf16")
        cache = Cache(shape, n_blocks=120)
        root = cache.add(700, seed=1)
        cache.step([(root, 699)], n_workers)
        child = cache.fork(root, 640, 660, seed=2)
        cache.step([(child, 19)], n_workers)
        other = cache.add(90, seed=3)
        cache.step([(other, 88)], n_workers)
        prompt = cache.add(50, seed=4)
        work = [(root, 1), (child, 1), (other, 2), (prompt, 50)]
        for (sequence, n), found in zip(work, cache.step(work, n_workers), strict=True):
            assert_close(found, cache.oracle(sequence, last=n), 2e-6 + error_of_weights(shape))


@pytest.mark.skipif("avx512amx" not in kernels.supported_isas(), reason="no tiles")
@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("group", [1, 4, 5])
def test_tiles_are_used_for_more_than_four_queries(group: int) -> None:
    """If bits may depend on the batch, few queries have the bits of the instruction set without tiles."""

    def last_row(isa: str) -> Array:
        with using(isa):
            cache = Cache(Shape(n_head=2 * group, n_kv_head=2, kv_type="bf16"))
            sequence = cache.add(600, seed=1)
            cache.step([(sequence, 599)])
            (row,) = cache.step([(sequence, 1)], n_workers=2)
        return row

    found, without = last_row("avx512amx"), last_row("avx512bf16")
    with using(deterministic=True):
        by_tiles = last_row("avx512amx")
    assert not np.array_equal(without, by_tiles)
    np.testing.assert_array_equal(found, without if group <= 4 else by_tiles)


def test_random_shapes(isa: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(25):
        n_kv_head = int(rng.integers(1, 4))
        shape = Shape(
            n_head=n_kv_head * int(rng.integers(1, 9)),
            n_kv_head=n_kv_head,
            head_dim=int(rng.integers(1, 200)),
            v_head_dim=int(rng.integers(1, 200)),
            soft_cap=float(rng.uniform(1, 20)) if rng.random() < 0.3 else None,
            window=int(rng.integers(1, 100)) if rng.random() < 0.5 else None,
            sinks=bool(rng.random() < 0.3),
            n_bias=int(rng.integers(1, 150)) if rng.random() < 0.3 else 0,
            kv_type=str(rng.choice(TYPES)),
        )
        if rng.random() < 0.3:
            most = max(shape.head_dim, shape.v_head_dim)
            shape = replace(shape, n_kv_head=1, head_dim=most, v_in_k=True)
        check(shape, n_tokens=int(rng.integers(1, 120)))


@pytest.mark.parametrize("n", [1, 7, 16, 100])
def test_kv_write_rounds_to_nearest_even(isa: str, n: int) -> None:
    """Oracle: NumPy's float16 and the definition of bfloat16."""
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2**32, size=(64, 2, n), dtype=np.uint64).astype(np.uint32)
    halves = np.arange(64 * 2 * n, dtype=np.uint32).reshape(64, 2, n) << 12  # ties and their neighbours
    with np.errstate(over="ignore", invalid="ignore"):
        small = rng.normal(size=bits.shape).astype(np.float32) * np.exp2(
            rng.integers(-30, 18, bits.shape), dtype=np.float32
        )
        for k in (bits.view(np.float32), (bits & 0xBFFFFFFF).view(np.float32), halves.view(np.float32), small):
            wanted = {"f16": k.astype(np.float16), "bf16": bf16_bits(k), "f32": k}
            for kv_type, want in wanted.items():
                pools = [np.zeros(shape, want.dtype) for shape in ((3, 2, n, BLOCK), (3, 2, BLOCK, n))]
                slots = [int(i) for i in rng.permutation(np.arange(96))[:64]]
                batch = testing.AttentionBatch(row_begin=[0, 64], n_kv=[64], tables=[[1, 2]], slots=slots)
                testing.kv_write(chosen(), k, -k, pools[0], pools[1], batch, 2)
                by_token = [pools[0].transpose(0, 3, 1, 2), pools[1].transpose(0, 2, 1, 3)]
                for pool, expected in zip(by_token, (want, wanted_negated(k, kv_type)), strict=True):
                    rows = pool.reshape(96, 2, n)[slots]
                    nan = np.isnan(k)
                    integers = np.uint32 if kv_type == "f32" else np.uint16
                    np.testing.assert_array_equal(rows.view(integers)[~nan], expected.view(integers)[~nan])
                    assert np.isnan(stored_values(rows, kv_type)[nan]).all()


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
def test_the_rest_of_a_steps_blocks_is_poisoned(kv_type: str) -> None:
    """One sequence ends inside a block, another fills its last block; everything else is unchanged."""
    assert testing.poisons()  # in all tests: conftest.py
    n_heads, dim = 2, 6
    slots = [*range(32 + 20, 64), *range(96, 96 + 5), *range(128 + 30, 160)]
    batch = testing.AttentionBatch(row_begin=[0, 17, 19], n_kv=[37, 32], tables=[[1, 3], [4]], slots=slots)
    k = np.ones((len(slots), n_heads, dim), np.float32)
    if kv_type == "q8_0":
        pools = [np.zeros((5, n_heads, q8_bytes(dim)), np.int8) for _ in range(2)]
    else:
        kind = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[kv_type]
        pools = [np.zeros(shape, kind) for shape in ((5, n_heads, dim, BLOCK), (5, n_heads, BLOCK, dim))]
    testing.kv_write(chosen(), k, k, *pools, batch, poison_rest=True)
    for pool, is_k in zip(pools, (True, False), strict=True):
        if kv_type == "q8_0":
            values = pool[:, :, -4 * BLOCK :].copy().view(np.float32)[..., None]
        else:
            values = stored_values(pool, kv_type)
            values = values.transpose(0, 1, 3, 2) if is_k else values
        by_slot = values.transpose(0, 2, 1, 3).reshape(5 * BLOCK, -1)
        poisoned = list(range(96 + 5, 128))
        assert np.isnan(by_slot[poisoned]).all()
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(by_slot).any(axis=1)), poisoned)
        np.testing.assert_array_equal(np.flatnonzero((by_slot > 0).all(axis=1)), slots)


@pytest.mark.parametrize("n", [1, 7, 16, 100])
def test_kv_write_of_codes(isa: str, n: int) -> None:
    """Oracle: q8_codes(), also for zeros, numbers too small for a scale, NaN and infinity."""
    rng = np.random.default_rng(6)
    k = (rng.normal(size=(64, 2, n)) * np.geomspace(1e-25, 1e30, 64)[:, None, None]).astype(np.float32)
    k[3], k[4] = 0, 1e-35
    k[5, 0, n // 2], k[6, 1, 0] = np.nan, -np.inf
    pools = [np.full((3, 2, q8_bytes(n)), 85, np.int8) for _ in range(2)]
    slots = [int(i) for i in rng.permutation(np.arange(96))[:64]]
    batch = testing.AttentionBatch(row_begin=[0, 64], n_kv=[64], tables=[[1, 2]], slots=slots)
    testing.kv_write(chosen(), k, -k, pools[0], pools[1], batch, 2)
    padded = -(-n // 4) * 4
    codes = [pool[:, :, : BLOCK * padded] for pool in pools]
    by_token = [
        codes[0].reshape(3, 2, padded // 4, BLOCK, 4).transpose(0, 3, 1, 2, 4).reshape(96, 2, padded),
        codes[1][:, :, : BLOCK * n].reshape(3, 2, BLOCK, n).transpose(0, 2, 1, 3).reshape(96, 2, n),
    ]
    assert not by_token[0][slots][:, :, n:].any()
    for pool, found, wanted in zip(pools, by_token, (k, -k), strict=True):
        scales = pool[:, :, BLOCK * padded :].copy().view(np.float32).transpose(0, 2, 1).reshape(96, 2)[slots]
        finite = np.isfinite(wanted).all(axis=-1)
        assert np.isnan(scales[~finite]).all()
        want_codes, want_scales = q8_codes(wanted[finite])
        np.testing.assert_array_equal(found[slots][:, :, :n][finite], want_codes)
        np.testing.assert_array_equal(scales[finite], want_scales[:, 0])


def wanted_negated(k: Array, kv_type: str) -> npt.NDArray[np.generic]:
    return bf16_bits(-k) if kv_type == "bf16" else (-k).astype(np.float16 if kv_type == "f16" else np.float32)


def stored_values(rows: npt.NDArray[np.generic], kv_type: str) -> Array:
    if kv_type == "bf16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32)


def test_no_sequences_and_empty_sequences(isa: str) -> None:
    k_pool, pool = np.zeros((2, 1, 4, BLOCK), np.float32), np.zeros((2, 1, BLOCK, 4), np.float32)
    nothing = testing.AttentionBatch(row_begin=[0], n_kv=[], tables=[], slots=[])
    out = testing.paged_attention(chosen(), np.ones((3, 2, 4), np.float32), k_pool, pool, nothing, scale=1.0)
    assert out.shape == (3, 2, 4)
    assert not out.any()
    batch = testing.AttentionBatch(row_begin=[0, 0, 1, 1], n_kv=[5, 1, 0], tables=[[1], [1], []], slots=[32])
    pool[1, 0, 0] = 2.0
    out = testing.paged_attention(chosen(), np.ones((1, 2, 4), np.float32), k_pool, pool, batch, scale=1.0)
    np.testing.assert_array_equal(out, np.full((1, 2, 4), 2.0, np.float32))


def test_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in kernels.supported_isas():
        monkeypatch.setenv("QUIRE_ISA", known)
        assert kernels.KernelSet().isa == known
    monkeypatch.setenv("QUIRE_ISA", "sse9")
    with pytest.raises(UnsupportedError, match="'sse9'"):
        kernels.KernelSet()
    monkeypatch.delenv("QUIRE_ISA")
    assert kernels.KernelSet().isa == kernels.supported_isas()[-1]
    assert kernels.KernelSet().is_deterministic  # in all tests: conftest.py
    assert not kernels.KernelSet(deterministic=False).is_deterministic
    assert kernels.supported_isas()[0] == "portable"
    with pytest.raises(UnsupportedError, match="'sse9'"):
        kernels.KernelSet("sse9")
    for known in sorted({"avx512amx", "neoni8mm"}.difference(kernels.supported_isas())):
        with pytest.raises(UnsupportedError, match=rf"^\[isa\] this (machine|build) .*{known}"):
            kernels.KernelSet(known)


def test_invalid_arguments_are_errors() -> None:
    def batch(**changes: object) -> testing.AttentionBatch:
        good: dict[str, object] = {"row_begin": [0, 2], "n_kv": [2], "tables": [[1]], "slots": [32, 33]}
        return testing.AttentionBatch(**{**good, **changes})  # type: ignore[arg-type]

    wrong: list[dict[str, object]] = [{"row_begin": bad} for bad in ([], [0], [1, 2], [0, 3])]
    wrong += [{"n_kv": [1]}, {"n_kv": [33]}, {"slots": [32]}, {"tables": []}]
    for changes in wrong:
        with pytest.raises(ShapeError):
            batch(**changes)
    q, pool = np.zeros((2, 4, 8), np.float32), np.zeros((2, 2, BLOCK, 8), np.float16)
    k_pool = np.zeros((2, 2, 8, BLOCK), np.float16)
    testing.paged_attention(chosen(), q, k_pool, pool, batch(), scale=1.0)
    v_pools = (pool[:1], pool[:, :1], pool.astype(np.float32), pool[:, :, :16], pool.astype(np.int16))
    for v_pool in (*v_pools, np.asfortranarray(pool)):
        with pytest.raises(ShapeError):
            testing.paged_attention(chosen(), q, k_pool, v_pool, batch(), scale=1.0)
    for bad in (q[:1], q[:, :3], q[:, :, :4], q[0]):
        with pytest.raises(ShapeError):
            testing.paged_attention(chosen(), bad, k_pool, pool, batch(), scale=1.0)
    for options in ({"window": 0}, {"soft_cap": 0.0}, {"sinks": np.zeros(3, np.float32)}, {"n_workers": 0}):
        with pytest.raises(ShapeError):
            testing.paged_attention(chosen(), q, k_pool, pool, batch(), scale=1.0, **options)  # type: ignore[arg-type]
    for changes in ({"tables": [[2]]}, {"tables": [[-1]]}, {"slots": [32, 64]}, {"slots": [-1, 32]}):
        with pytest.raises(ShapeError):
            testing.paged_attention(chosen(), q, k_pool, pool, batch(**changes), scale=1.0)
    read_only = k_pool.copy()
    read_only.flags.writeable = False
    k = np.zeros((2, 2, 8), np.float32)
    with pytest.raises(ValueError, match="not writeable"):
        testing.kv_write(chosen(), k, k, read_only, pool, batch())
    with pytest.raises(ShapeError):
        testing.kv_write(chosen(), k, k[:1], k_pool, pool, batch())
    codes = np.zeros((2, 2, q8_bytes(8)), np.int8)
    testing.kv_write(chosen(), k, k, codes, codes.copy(), batch())
    testing.paged_attention(chosen(), q, codes, codes, batch(), scale=1.0, v_head_dim=8)
    one = np.zeros((2, 1, 8, BLOCK), np.float32)
    with pytest.raises(ShapeError, match="v_head_dim is missing"):
        testing.paged_attention(chosen(), q, one, None, batch(), scale=1.0)
    with pytest.raises(ShapeError, match=r"v_head_dim.* 8"):
        testing.paged_attention(chosen(), q, one, None, batch(), scale=1.0, v_head_dim=9)
    with pytest.raises(ShapeError, match="heads of k_pool"):
        testing.paged_attention(chosen(), q, k_pool, None, batch(), scale=1.0, v_head_dim=4)
    with pytest.raises(ShapeError, match="v_pool"):
        testing.kv_write(chosen(), k, None, k_pool, pool, batch())
    with pytest.raises(ShapeError, match="v_head_dim"):
        testing.paged_attention(chosen(), q, codes, codes, batch(), scale=1.0)
    with pytest.raises(ShapeError, match=r"v_pool .*(512.*384|384.*512)"):
        testing.paged_attention(chosen(), q, codes, codes, batch(), scale=1.0, v_head_dim=12)
    for bad_pool in (codes[:, :, :-4], codes[:1], codes.reshape(2, 2, 32, 12)):
        with pytest.raises(ShapeError):
            testing.kv_write(chosen(), k, k, codes, np.ascontiguousarray(bad_pool), batch())
