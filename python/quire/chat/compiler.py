"""Compile parsed templates to Python: insert budget checks, and mark the template's own text as such."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer

from quire.chat.provenance import own
from quire.errors import UnsupportedError

__all__ = ["Generator", "Meter"]


class Meter(NodeTransformer):
    """Inserts budget checks into a parsed template where no call or filter does the work.

    These are loops, joined strings, slices, arguments behind stars, and values that are compared or hashed.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = self._filter(node.iter, "quire each")
        n_bytes = sum(map(_own_text, node.body))
        node.body.insert(0, nodes.ExprStmt(self._filter(nodes.Const(n_bytes, lineno=node.lineno), "quire turn")))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes, lineno=node.lineno), "quire concat")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._unless_plain(node.expr, "quire operand")
        for other in node.ops:
            looks_into = other.op in ("in", "notin")
            other.expr = self._unless_plain(other.expr, "quire container" if looks_into else "quire operand")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = self._unless_plain(node.key, "quire operand")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._filter(node.node, "quire sliced")
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        return self._spread(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        return self._spread(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        return self._spread(node)

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:
        raise UnsupportedError("[chat template] autoescape blocks are unsupported: they are for HTML")

    def _spread(self, node: nodes.Node) -> nodes.Node:
        self.generic_visit(node)
        assert isinstance(node, (nodes.Call, nodes.Filter, nodes.Test))
        if node.dyn_args is not None:
            node.dyn_args = self._filter(node.dyn_args, "quire spread")
        return node

    def _unless_plain(self, node: nodes.Expr, name: str) -> nodes.Expr:
        parts = node.items if isinstance(node, (nodes.List, nodes.Tuple)) else [node]
        return node if all(isinstance(part, nodes.Const) for part in parts) else self._filter(node, name)

    @staticmethod
    def _filter(node: nodes.Node, name: str) -> nodes.Filter:
        assert isinstance(node, nodes.Expr)
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _own_text(node: nodes.Node) -> int:
    """Return the bytes that a part of a template may put out without evaluating an expression."""
    size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    outputs = [node] if isinstance(node, nodes.Output) else node.find_all(nodes.Output)
    for output in outputs:
        size += sum(len(const.value) for const in output.find_all(nodes.Const) if isinstance(const.value, str))
    return 4 * size


class Generator(CodeGenerator):
    """Generates code in which a template's own texts are ``TemplateText``."""

    def _own(self, text: str) -> str:
        texts: list[str] = self.environment.own_texts  # type: ignore[attr-defined]
        texts.append(own(text))
        return f"environment.own_texts[{len(texts) - 1}]"

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._own("".join(group))

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(self._own(node.value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(self._own(node.data))
