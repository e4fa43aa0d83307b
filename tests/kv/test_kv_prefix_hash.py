"""Block hashes and cache sizes.  Oracles: hashlib.blake2b and arithmetic written out here."""

from __future__ import annotations

import hashlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quire._native.testing import blake2b, block_hash
from quire.errors import ShapeError


@pytest.mark.parametrize("size", [*range(0, 5), 63, 64, 127, 128, 129, 255, 256, 257, 1000, 4096])
def test_blake2b_equals_hashlib(size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    for digest_size, person in [(64, b""), (32, b"quire.kv.block.1"), (1, b"x"), (16, b"half")]:
        expected = hashlib.blake2b(data, digest_size=digest_size, person=person).digest()
        assert blake2b(data, digest_size=digest_size, person=person) == expected


@given(st.binary(max_size=600), st.integers(1, 64), st.binary(max_size=16))
def test_blake2b_equals_hashlib_on_anything(data: bytes, digest_size: int, person: bytes) -> None:
    expected = hashlib.blake2b(data, digest_size=digest_size, person=person).digest()
    assert blake2b(data, digest_size=digest_size, person=person) == expected


@pytest.mark.parametrize(("digest_size", "person"), [(0, b""), (65, b""), (32, b"x" * 17)])
def test_blake2b_refuses_what_hashlib_refuses(digest_size: int, person: bytes) -> None:
    with pytest.raises(ValueError):
        hashlib.blake2b(b"", digest_size=digest_size, person=person).digest()
    with pytest.raises((ShapeError, ValueError)):
        blake2b(b"", digest_size=digest_size, person=person)


def framed(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40),
    st.none() | st.binary(min_size=32, max_size=32),
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
def test_block_hash_is_the_documented_one(
    tokens: list[int], parent: bytes | None, adapter: bytes, media: bytes, salt: bytes
) -> None:
    message = framed(parent or b"", struct.pack(f"<{len(tokens)}i", *tokens), adapter, media, salt)
    expected = hashlib.blake2b(message, digest_size=32, person=b"quire.kv.block.1").digest()
    assert block_hash(tokens, parent=parent, adapter=adapter, media=media, salt=salt) == expected


def test_moving_bytes_between_fields_changes_the_hash() -> None:
    """Framing: equal concatenations in different fields are different blocks."""
    seen = set()
    text = b"abcd"
    for i, j in itertools.combinations_with_replacement(range(5), 2):
        seen.add(block_hash([1, 2], adapter=text[:i], media=text[i:j], salt=text[j:]))
    assert len(seen) == 15
    assert len({block_hash([0] * n) for n in range(40)}) == 40
    assert block_hash([1]) != block_hash([1], parent=bytes(32))


def test_a_hash_has_32_bytes() -> None:
    with pytest.raises(ShapeError, match="3 bytes: expected 32"):
        block_hash([1], parent=b"abc")
