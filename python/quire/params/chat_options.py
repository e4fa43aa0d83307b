"""The options of a chat besides its sampling, declared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TypeAlias

from ..errors import RequestError
from .parameter import Declaration, declared
from .request_fields import RequestFields
from .rules import Bool, Instance, Int, Rule, Text, refusal

__all__ = ["CHAT_OPTIONS", "ChatFields", "ChatOption", "ChatOptions", "RunFields", "ToolChoice"]

ToolChoice: TypeAlias = "str | Mapping[str, object]"
"""``"auto"``: the model decides; ``"none"``: it is shown no tools; ``"required"`` or ``{"type": "function", "function":
{"name": ...}}``: it must call."""


@dataclass(frozen=True)
class _Choice(Rule):
    def _checked(self, label: str, value: object) -> object:
        if value not in ("auto", "none", "required") and not isinstance(value, Mapping):
            raise refusal(label, value, "is unknown: expected auto, none, required or a tool")
        return value


@dataclass(frozen=True)
class _Values(Rule):
    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, Mapping):
            raise refusal(label, value, "is not a mapping")
        for name in ("messages", "tools", "add_generation_prompt"):
            if name in value:
                raise RequestError(f"{label} cannot set {name!r}: it is an argument of the call")
        return value


@dataclass(frozen=True, kw_only=True)
class ChatOption(Declaration):
    """An option of a chat.  ``keyword``: ``LLM.chat`` has it; otherwise only the server's routes do."""

    keyword: bool = True


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The options of a chat; see ``LLM.chat``.  Raises ``RequestError`` naming the one that is out of range.

    ``ChatRequest.ignored`` names what has no effect, and turns and tokens that were dropped.
    """

    tools: Sequence[Mapping[str, object]] | None = declared(None, ChatOption(
        rule=Instance(Sequence, optional=True), doc="Function definitions as in OpenAI's API",
    ))
    tool_choice: ToolChoice = declared("auto", ChatOption(
        rule=_Choice(), doc="auto (calls of tools with strict follow their schemas), none, required, or one tool as in"
        " OpenAI's API, which must be called",
    ))
    parallel_tool_calls: bool = declared(True, ChatOption(rule=Bool(), doc="False allows one call at most"))
    tool_format: str = declared("auto", ChatOption(
        rule=Text(), doc="A format of docs/tool_calls.md, auto for the template's own, none to leave calls in the text",
    ))
    reasoning_format: str = declared("auto", ChatOption(
        rule=Text(), doc="A format of reasoning, auto for the template's own, none to leave it in the text",
    ))
    reasoning_budget: int | None = declared(None, ChatOption(
        rule=Int(optional=True), doc="End reasoning after this many tokens; slower, as Python then runs for each token",
    ))
    template_values: Mapping[str, object] | None = declared(None, ChatOption(
        rule=_Values(optional=True), doc="More variables for the template",
    ))
    chat_template: str | None = declared(None, ChatOption(
        rule=Text(optional=True), doc="Jinja source of a chat template in place of the model's",
    ))
    continue_final_message: bool = declared(False, ChatOption(
        rule=Bool(), doc="Continue the last message, which is the assistant's",
    ))
    add_generation_prompt: bool = declared(True, ChatOption(
        rule=Bool(), keyword=False, doc="False ends the prompt with the last message",
    ))
    lenient: bool = declared(False, ChatOption(
        rule=Bool(), keyword=False, doc="Ignore template_values that the template does not read, and a"
        " reasoning_budget of a model that does not reason",
    ))
    max_prompt_tokens: int | None = declared(None, ChatOption(
        rule=Int(1, optional=True),
        doc="Drop the oldest turns of a longer prompt; system messages and the last turn stay",
    ))
    cut_prompt: bool = declared(False, ChatOption(
        rule=Bool(), keyword=False,
        doc="If dropping turns is not enough, also drop tokens of the prompt after the first keep_tokens",
    ))
    keep_tokens: int = declared(0, ChatOption(rule=Int(), keyword=False, doc="First tokens that cut_prompt keeps"))
    # fmt: on

    def __post_init__(self) -> None:
        for name, option in CHAT_OPTIONS.items():
            option.rule.check(f"[chat] {name}", self.__dict__[name])

    @property
    def begins_answer(self) -> bool:
        """Return whether the prompt ends with the beginning of an answer."""
        return self.add_generation_prompt and not self.continue_final_message

    @property
    def shown_tools(self) -> Sequence[Mapping[str, object]] | None:
        """The tools that the prompt describes."""
        return self.tools if self.tools and self.tool_choice != "none" else None


CHAT_OPTIONS: Mapping[str, ChatOption] = MappingProxyType(
    {entry.name: entry.metadata["parameter"] for entry in fields(ChatOptions)}
)
"""All options by name, in the order of ``ChatOptions``."""


class RunFields(RequestFields, total=False):
    """The keywords of ``LLM.chat`` without ``tools``, which ``LLM.run`` takes in more forms."""

    # BEGIN ChatOptions (written by ci/make_params.py)
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    tool_format: str
    reasoning_format: str
    reasoning_budget: int | None
    template_values: Mapping[str, object] | None
    chat_template: str | None
    continue_final_message: bool
    max_prompt_tokens: int | None
    # END ChatOptions
    salt: bytes
    priority: int
    key: str


class ChatFields(RunFields, total=False):
    """The keywords of ``LLM.chat``: those of ``RequestFields`` and ``ChatOptions``, and three of ``RequestOptions``."""

    tools: Sequence[Mapping[str, object]] | None
