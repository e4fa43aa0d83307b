"""Products with matrices, and tables of vectors."""

from __future__ import annotations

from typing import Any

import torch

from .blocks import Source, Walker, canonical
from .recorder import Constant, Traced, Value


class Products(Walker):
    """Describes matrix products and embeddings."""

    def linear_of(self, value: Value) -> tuple[Traced, Source, str | None] | None:
        """Return the input, matrix and bias of a product."""
        args, call = list(value.args), value.call
        bias: Any = None
        if call == "linear":
            args += [value.named[name] for name in ("input", "weight", "bias") if name in value.named]
            x, weight = args[0], args[1]
            bias = args[2] if len(args) > 2 else None
            is_transposed = False
        elif call == "addmm" and len(args) == 3:
            bias, x, weight = args
            is_transposed = True
        elif call in ("matmul", "__matmul__", "mm") and len(args) == 2:
            x, weight = args
            is_transposed = True
        else:
            return None
        if not isinstance(x, Traced) or not isinstance(weight, Constant):
            return None
        expression = weight.expression
        if isinstance(expression, list) and expression[0] == "transpose":
            expression, is_transposed = expression[1], not is_transposed
        if not isinstance(expression, str) or not (bias is None or isinstance(bias, Constant)):
            return None
        if bias is not None and not isinstance(bias.expression, str):
            return None
        return x, Source(expression, transposed=is_transposed), None if bias is None else bias.expression

    def linear(self, key: Any, parts: tuple[Traced, Source, str | None], rows: dict[str, int] | None) -> int:
        x, matrix, bias = parts
        ref = self.explain(x)
        is_head = self.block.where == "the output" and rows is None and self.weights[matrix.name].shape[0] > 0
        name = self._global_name(matrix.name) if is_head else None
        op: dict[str, Any] = {"op": "linear", "x": ref}
        op["w"] = self.take(Source(matrix.name, rows, matrix.transposed), name)
        if bias is not None:
            op["b"] = self.take(Source(bias, rows), op["w"].removesuffix(".weight") + ".bias" if name else None)
        return self.emit(key, **op)

    def _global_name(self, weight: str) -> str | None:
        """Return the name of the output matrix: GGUF's, or that of the embedding if both are one weight."""
        tensor = self.weights[weight]
        embedding = next((v for v in self.values if v.call == "embedding" and self._reads_text(v)), None)
        if embedding is not None and isinstance(embedding.args[1], Constant):
            name = embedding.args[1].expression
            if isinstance(name, str) and self.weights[name] is tensor:
                return "token_embd.weight"
        n_vocab = self.seen.logits.shape[-1]
        return "output.weight" if tensor.shape[0] == n_vocab else None

    def _reads_text(self, value: Value) -> bool:
        first = value.args[0]
        return isinstance(first, Traced) and first.numbers == [0]

    def _embedding(self, value: Value) -> int:
        index, table = value.args[0], value.args[1]
        if not isinstance(table, Constant) or not isinstance(table.expression, str):
            raise self.refuse("embedding", value)
        name = table.expression
        if isinstance(index, Traced) and index.numbers == [0]:
            found = self.columns(index)
            if found is None or self.block.where != "the embeddings":
                raise self.refuse("embedding", value)
            return self.emit(value.number, op="embed", w=self.take(Source(name), "token_embd.weight"))
        raise self.refuse("embedding by something else than tokens", value)

    def _fixed_embedding(self, operand: Any, shape: torch.Size) -> tuple[str, Any] | None:
        """Return what a vector from a table is that is not looked up by tokens: one of positions, or one row."""
        if not isinstance(operand, Constant):
            return None
        rows = canonical(torch.broadcast_to(operand.tensor, shape), self.n)
        if rows is None:
            return None
        for name, table in self.weights.items():
            if table.dim() != 2 or table.shape[1] != rows.shape[1]:
                continue
            same = [i for i in range(min(table.shape[0] - self.n + 1, 8)) if torch.equal(table[i : i + self.n], rows)]
            if same:
                return "positions", (name, same[0])
            if torch.equal(rows, rows[:1].expand_as(rows)):
                for i in range(min(table.shape[0], 8)):
                    if torch.equal(table[i], rows[0]):
                        return "row", (name, i)
        return None
