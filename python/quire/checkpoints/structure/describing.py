"""Describe a recorded model as operations that Quire has, or name the part that it has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import UnsupportedError
from .blocks import ADD, DIV, MUL, RSUB, SUB, TURNS, VERSION, Block, Source
from .mixtures import Mixtures
from .observed import layers_of
from .recorder import Traced, Value


@dataclass
class Description:
    """A model as data (``models/described.py`` runs it), and where its tensors come from."""

    program: dict[str, Any]
    sources: dict[str, Source]


class Describer(Mixtures):
    """Describes a whole model, layer by layer."""

    def describe(self) -> Description:
        layers = self.recorder.layers
        if len(layers) != len(layers_of(self.seen.model)) or any(None in pair for pair in layers):
            raise UnsupportedError("[fallback] unsupported decoder: its layers do not run once each, in order")
        blocks, sources = [], dict[str, Source]()
        first = layers[0][0]
        assert first is not None
        blocks.append(self._block("the embeddings", 0, first))
        for i, (_, after) in enumerate(layers):
            assert after is not None
            # Calls between two layers belong to the second one.
            before = blocks and (layers[i - 1][1] if i else layers[0][0])
            blocks.append(self._block(f"layer {i}", self._whole(before, f"layer {i}"), after))
        logits = self.recorder.traced(self.seen.logits)
        assert logits is not None
        blocks.append(self._block("the output", self._whole(layers[-1][1], "the output"), logits))
        kinds: list[Any] = []
        order = []
        for i, block in enumerate(blocks):
            prefix = f"blk.{i - 1}." if 0 < i < len(blocks) - 1 else ""
            sources |= {prefix + name: source for name, source in block.sources.items()}
            if 0 < i < len(blocks) - 1:
                if block.ops not in kinds:
                    kinds.append(block.ops)
                order.append(kinds.index(block.ops))
        program = {
            "version": VERSION, "input": blocks[0].ops, "kinds": kinds, "layers": order, "output": blocks[-1].ops,
            "rotations": self.rotations,
        }  # fmt: skip
        return Description(program, sources)

    def _whole(self, traced: Any, where: str) -> int:
        """Return the value that a tensor is a whole copy of."""
        numbers = traced.numbers
        if len(numbers) != 1:
            raise UnsupportedError(f"[fallback] unsupported input of {where}: it joins several values")
        return int(numbers[0])

    def _block(self, where: str, base: int, result: Traced) -> Block:
        self.block = Block(base, where=where)
        last = self.explain(result)
        if last != len(self.block.ops):  # the result is an earlier value, or the input
            self.block.ops.append({"op": "same", "x": last})
        return self.block

    def _explained(self, value: Value) -> int:
        call = value.call
        if (linear := self.linear_of(value)) is not None:
            return self.linear(value.number, linear, None)
        if (attended := self.plain_attention(value)) is not None:
            return attended
        if (describe := self.known_calls().get(call)) is not None:
            return describe(value)
        if call in TURNS and self._angles(value):
            turned = self.turned(self._all_of(value))
            if turned is not None:
                return turned
        if call in ADD | SUB | RSUB | MUL | DIV:
            return self._arithmetic(value)
        unary = self._unary(value)
        if unary is None:
            raise self.refuse(f"call {call}", value)
        return unary

    def known_calls(self) -> Mapping[str, Callable[[Value], int]]:
        norms = dict.fromkeys(("norm", "rms_norm", "layer_norm", "normalize"), self._norm)
        return {**norms, "embedding": self._embedding, "attend": self._attend, "experts": self._experts}
