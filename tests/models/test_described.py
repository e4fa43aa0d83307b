"""Files with described programs: what does not fit is an error before any step runs.  Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire._native.core import DType
from quire.errors import LoadError, QuireError
from quire.files.gguf import GGUFReader, GGUFWriter
from quire.models import load_model

pytestmark = pytest.mark.python_only

N_VOCAB, DIM = 8, 32
SHAPES = {
    "token_embd.weight": (N_VOCAB, DIM), "output.weight": (N_VOCAB, DIM), "blk.0.a.weight": (DIM, DIM),
    "blk.0.n.weight": (DIM,), "blk.0.few.weight": (4, DIM),
}  # fmt: skip
OPS: list[dict[str, Any]] = [
    {"op": "norm", "x": 0, "w": "n.weight", "eps": 1e-5, "kind": "rms", "heads": 1},
    {"op": "linear", "x": 1, "w": "a.weight"},
    {"op": "rope", "x": 2, "dim": 8, "rotation": 0, "at_end": False},
    {
        "op": "attend", "q": 3, "k": 3, "v": 2, "n_head": 4, "n_kv_head": 4, "head_dim": 8, "v_head_dim": 8,
        "scale": 0.3, "window": 0,
    },
    {"op": "add", "a": 4, "b": 0},
]  # fmt: skip
PROGRAM: dict[str, Any] = {
    "version": 1, "kinds": [OPS], "layers": [0], "input": [{"op": "embed", "w": "token_embd.weight"}],
    "output": [{"op": "linear", "x": 0, "w": "output.weight"}],
    "rotations": [{"n_dims": 8, "layout": "half", "factor": 1.0, "factors": None, "base": 1e4}],
}  # fmt: skip


def trace(path: Path, program: str) -> None:
    with GGUFWriter(path, "described") as writer:
        for key, value in (("context_length", 8), ("embedding_length", DIM), ("block_count", 1)):
            writer.set(f"described.{key}", value, "u32")
        writer.set("described.program", program)
        wanted = ("token_embd.weight", *(name for name in SHAPES if f'"{name.removeprefix("blk.0.")}"' in program))
        used = sorted({*wanted})
        for name in used:
            writer.add_tensor(name, DType("f32"), SHAPES[name])
        for name in used:
            writer.write(name, np.ones(SHAPES[name], np.float32))
    load_model(GGUFReader(path)).trace()


def with_op(i: int, **changed: Any) -> dict[str, Any]:
    return {**PROGRAM, "kinds": [[*OPS[:i], {**OPS[i], **changed}, *OPS[i + 1 :]]]}


def with_more(**op: Any) -> dict[str, Any]:
    return {**PROGRAM, "kinds": [[*OPS, op]]}


def nested(n: int) -> Any:
    return json.loads('["neg", ' * n + "1.0" + "]" * n)


def test_a_program_that_fits_is_traced(tmp_path: Path) -> None:
    trace(tmp_path / "x.gguf", json.dumps(PROGRAM))
    trace(tmp_path / "y.gguf", json.dumps(with_more(op="mul_weight", x=5, w=["add", ["repeat", 1.0, DIM], 1.0])))


MALFORMED: dict[str, Any] = {
    "list": [],
    "version": {"version": 2},
    "no rotations": {key: value for key, value in PROGRAM.items() if key != "rotations"},
    "another layer": {**PROGRAM, "layers": [1]},
    "no operation": with_op(1, op="vector"),
    "a method": with_op(1, op="made"),
    "a list as operation": with_op(1, op=[]),
    "a later value": with_op(1, x=2),
    "a value before the first": with_op(1, x=-1),
    "a name as value": with_op(1, x="n.weight"),
    "true as value": with_op(1, x=True),
    "no heads": with_op(0, heads=0),
    "more heads than numbers": with_op(0, heads=10**30),
    "heads of no numbers": with_op(2, dim=0),
    "no scale": with_op(3, scale=[]),
    "no cache": {**PROGRAM, "kinds": [[{"op": "attend"}]]},
    "a table as name": {**PROGRAM, "input": [{"op": "embed", "w": 3}]},
    "no parts": with_more(op="slice", x=5, part=0, parts=0),
    "half a part": with_more(op="slice", x=5, part=0.5, parts=2),
    "beyond 64 bits": with_more(op="slice", x=5, size=DIM, begin=0, end=2**63),
    "no function": with_more(op="unary", x=5, f="foo"),
    "a number as function": with_more(op="glu", gate=5, up=5, f=3),
    "a number beyond floats": with_more(op="scale", x=5, by=10**400),
    "a table with fewer rows than tokens": with_more(op="embed", w="few.weight"),
    "a long weight": with_more(op="mul_weight", x=5, w=["tile", 1.0, 10**12]),
    "a long weight, repeated": with_more(op="mul_weight", x=5, w=["repeat", 1.0, 10**12]),
    "a negative length": with_more(op="mul_weight", x=5, w=["tile", 1.0, -1]),
    "many weights": with_more(op="mul_weight", x=5, w=["repeat", ["tile", 1.0, 1 << 20], 1 << 20]),
    "a nested expression": with_more(op="mul_weight", x=5, w=nested(900)),
}


@pytest.mark.parametrize("name", [*MALFORMED])
def test_malformed_programs_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(QuireError):
        trace(tmp_path / "x.gguf", json.dumps(MALFORMED[name]))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, json.dumps(PROGRAM).replace("0.3", "1" * 5000)])
def test_programs_that_are_no_json_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(LoadError, match="program"):
        trace(tmp_path / "x.gguf", text)
