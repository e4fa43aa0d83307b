"""The variables that a template reads beside the conversation, and their values if the caller gives none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from jinja2 import meta, nodes

from quire.chat.messages import Json
from quire.chat.sandbox import strftime_now

__all__ = ["DATES", "KNOWN_ROLES", "PROVIDED", "compared_texts", "guarded_names", "read_names"]

# Roles whose names templates write inside a control token, as in ``<|user|>``.
KNOWN_ROLES = frozenset(
    {"assistant", "developer", "function", "ipython", "model", "observation", "system", "tool", "user"}
)


def _functions(tools: Sequence[Mapping[str, Json]] | None) -> str:
    return json.dumps([tool.get("function", tool) for tool in tools or ()], indent=4)


# Variables that are set by code published with a template: dates for all templates that read them, as in llama.cpp's
# server, and tools for templates that require them under another name.
DATES = frozenset({"date_string", "datetime"})
PROVIDED: Mapping[str, Callable[[Sequence[Mapping[str, Json]] | None], str]] = {
    "date_string": lambda _tools: strftime_now("%d %b %Y"),
    "datetime": lambda _tools: strftime_now("%b %d %Y"),
    "functions": _functions,
}


def read_names(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that a template reads.

    Like ``meta.find_undeclared_variables``, but without folding constants: that takes cubic time for a chain of
    filters.
    """
    assert tree.environment is not None
    finder = meta.TrackingCodeGenerator(tree.environment)
    finder.optimizer = None
    finder.visit(tree)
    return frozenset(finder.undeclared_identifiers)


def guarded_names(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that a template sets itself, tests or has a default for."""
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked = [test.node for test in tree.find_all(nodes.Test)]
    asked += [given.node for given in tree.find_all(nodes.Filter) if given.name in ("default", "d") and given.node]
    return frozenset(stored | {node.name for node in asked if isinstance(node, nodes.Name)})


def compared_texts(tree: nodes.Template) -> frozenset[str]:
    """Return the constant texts that a template compares values with."""
    return frozenset(
        const.value
        for comparison in tree.find_all(nodes.Compare)
        for const in comparison.find_all(nodes.Const)
        if isinstance(const.value, str)
    )
