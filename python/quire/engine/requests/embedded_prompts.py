"""Prompts of embeddings: rows that the model reads in place of those of tokens."""

from __future__ import annotations

import hashlib
import io
import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import RequestError
from ..media_places import PromptMedia

if TYPE_CHECKING:
    Rows = npt.NDArray[np.float32]

__all__ = ["MAX_BYTES", "embedded_prompt", "rows_of"]

MAX_BYTES = 256 << 20
_SPAN = 32  # tokens of a block, so that prompts share the blocks of rows that they have in common
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}


def rows_of(value: object, dim: int) -> Rows:
    """Return embeddings ``[n, dim]`` from an array, or from the bytes of a .npy or .safetensors file.

    RequestError for other shapes, values that are not finite, and files of ``torch.save``: they are pickles, which may
    hold code.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        value = _of_file(bytes(value))
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().float().cpu().numpy()
    try:
        rows = np.ascontiguousarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise _refusal(f"no array of numbers: {error!s:.100}") from None
    if rows.ndim == 3 and rows.shape[0] == 1:
        rows = rows[0]
    if rows.ndim != 2 or rows.shape[1] != dim or not len(rows):
        raise _refusal(f"shape {list(rows.shape)}: expected [n, {dim}]")
    if not np.isfinite(rows).all():
        raise _refusal("values that are not finite")
    return rows


def embedded_prompt(rows: Rows, width: int) -> tuple[list[int], PromptMedia]:
    """Return placeholder ids and the rows in their places, ``width`` numbers each."""
    padded = np.zeros((len(rows), width), np.float32)
    padded[:, : rows.shape[1]] = rows
    parts = [(begin, padded[begin : begin + _SPAN]) for begin in range(0, len(rows), _SPAN)]
    spans = [(begin, hashlib.blake2b(b"prompt_embeds" + part.tobytes(), digest_size=32).digest(), part)
             for begin, part in parts]  # fmt: skip
    return [0] * len(rows), PromptMedia(spans, None, (), [True] * len(spans))


def _of_file(data: bytes) -> Rows:
    if data.startswith(b"\x93NUMPY"):
        try:
            return np.asarray(np.lib.format.read_array(io.BytesIO(data), allow_pickle=False), np.float32)
        except (ValueError, OSError, MemoryError) as error:
            raise _refusal(f"a malformed .npy file: {error!s:.100}") from None
    if data.startswith((b"PK", b"\x80")):
        raise _refusal("a file of torch.save, which is a pickle and may hold code: give .npy or .safetensors")
    try:
        size = int.from_bytes(data[:8], "little")
        if size > len(data):
            raise ValueError("its header is longer than the file")
        tensors = {name: each for name, each in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}
        (tensor,) = tensors.values()
        begin, end = tensor["data_offsets"]
        found = np.frombuffer(data[8 + size + begin : 8 + size + end], _DTYPES[tensor["dtype"]])
        if tensor["dtype"] == "BF16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        rows: Rows = found.reshape(tensor["shape"]).astype(np.float32)
        return rows
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(f"neither a .npy file nor a .safetensors file with one tensor: {error!s:.100}") from None


def _refusal(reason: str) -> RequestError:
    return RequestError(f"[prompt_embeds] {reason}")
