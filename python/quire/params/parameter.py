"""The classes that declare parameters.

``sampling.py`` declares each sampling parameter once, as a field with a ``Parameter``; ``engine_options.py`` declares
each option of the engine, with an ``EngineOption``.  Everything else is derived: Python's keywords, command-line
options, fields of the server's routes, settings of its page, the native struct with its limits, tables in ``docs/``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, cast

from .rules import Bool, Choice, Float, Int, Rule, Seed, Text

__all__ = ["Declaration", "Dialect", "Parameter", "Slider", "Speculation", "declared"]

Dialect: TypeAlias = Literal["openai", "responses", "anthropic", "ollama", "llama_cpp", "generate"]
"""Routes with fields of their own: ``/v1/chat/completions`` and ``/v1/completions``, ``/v1/responses``,
``/v1/messages``, Ollama's ``options``, ``/completion``, ``/v1/generate``."""

Speculation = Literal["auto", "off", "draft", "mtp", "eagle", "lookup", "grammar"]
"""The drafter that proposes tokens."""

T = TypeVar("T")


@dataclass(frozen=True)
class Slider:
    """A setting of the server's page.  ``high``: None where any number is sensible.  ``rare``: under "More"."""

    label: str
    high: float | None
    step: float
    rare: bool = False


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The facts about a parameter besides its name, type and default.

    ``doc``: what it does, for help, documentation and page, without a full stop.  ``none``: what None, or an empty
    list, does.  ``flags``: its options on the command line.  ``aliases``: what other engines call it.
    """

    rule: Rule
    doc: str
    none: str = ""
    flags: str = ""
    metavar: str | None = None
    aliases: str = ""

    @property
    def text(self) -> str:
        """Its description in Python."""
        return f"{self.doc}; {'None' if self.rule.optional else 'empty'}: {self.none}" if self.none else self.doc


@dataclass(frozen=True, kw_only=True)
class Parameter(Declaration):
    """A parameter of sampling.

    ``paper``: where it was published.  ``chat``: its value in chats where nobody sets it.  ``stage``: the stage of the
    chain that runs if it is not the default.  ``native``: the sampler reads it.  ``gguf``: the key of a model's file
    that advises it.  ``routes``: the dialects with a field for it, each as ``dialect`` or ``dialect:name,name``.
    ``unset``: values where a dialect, or ``"command"`` for commands, has its own default.
    """

    paper: str = ""
    metavar: str | None = "N"
    chat: float | None = None
    stage: str = ""
    native: bool = True
    gguf: str = ""
    routes: str = ""
    unset: dict[str, Any] = field(default_factory=dict)
    page: Slider | None = None

    def names_in(self, dialect: Dialect, name: str) -> tuple[str, ...]:
        """Return the names of its fields in a dialect, none if the dialect lacks it; ``name`` is Quire's name."""
        for route in self.routes.split():
            found, colon, names = route.partition(":")
            if found == dialect:
                return tuple(names.split(",")) if colon else (name,)
        return ()

    @property
    def text(self) -> str:
        """Its description in Python."""
        return f"{super().text} ({self.paper})" if self.paper else super().text

    @property
    def help(self) -> str:
        """Its description on the command line, where -1 is None."""
        none = f"; -1: {self.none}" if self.none else ""
        return f"{self.doc}{none}."

    @property
    def kind(self) -> type[int | float | str] | None:
        """The type of its value; None for lists and objects."""
        return next((kind for rules, kind in _KINDS if isinstance(self.rule, rules)), None)


_KINDS: tuple[tuple[tuple[type[Rule], ...], type[int | float | str]], ...] = (
    ((Int, Seed), int), ((Float,), float), ((Bool,), bool), ((Text, Choice), str),
)  # fmt: skip


def declared(default: T, parameter: Declaration) -> T:
    """Return a dataclass field with its parameter.  To type checkers, the default."""
    metadata = {"parameter": parameter}
    if isinstance(default, dict):
        return cast("T", field(default_factory=default.copy, metadata=metadata))
    return field(default=default, metadata=metadata)
