"""Split reasoning from the answer by the tags around it.

Formats whose whole answer is made of channels (``harmony``, say) split it themselves, in ``quire.chat.tools``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.chat.tools.calls import Kind, Steps, Text
from quire.chat.tools.scanner import Malformed, Scanner, TrailingSpace
from quire.errors import RequestError

__all__ = [
    "CHANNELS",
    "REASONING_FORMATS",
    "ReasoningFormat",
    "ReasoningSplitter",
    "detect_reasoning",
    "reasoning_format",
]


@dataclass(frozen=True)
class ReasoningFormat:
    """Reasoning at the beginning of an answer, between ``start`` and ``end``.

    ``closing``: The text that leads from reasoning to the answer, if that is more than the end.
    """

    name: str
    start: str
    end: str
    closing: str = ""

    def opened_by(self, prompt: str) -> bool:
        """Return whether a prompt ends within reasoning, because some templates write ``start`` themselves."""
        return prompt.rstrip().endswith(self.start.rstrip())

    def closed_by(self, prompt: str) -> bool:
        """Return whether a prompt ends right after reasoning, so that the answer has none."""
        return prompt.rstrip().endswith(self.end.rstrip())

    @property
    def written_end(self) -> str:
        """The text that ends reasoning: ``closing``, or ``end`` with the line ends that models write around it."""
        if self.closing:
            return self.closing
        return f"\n{self.end}\n\n" if self.end.startswith("</") else self.end


REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("think_opensource", "<think:opensource>", "</think:opensource>"),
    ReasoningFormat("seed_think", "<seed:think>", "</seed:think>"),
    ReasoningFormat("thought", "<thought>", "</thought>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("command_r", "<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningFormat("gemma", "<|channel>thought", "<channel|>"),
    ReasoningFormat("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ReasoningFormat("minimax", "<mm:think>", "</mm:think>"),
    ReasoningFormat("apriel", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
)
# Reasoning that the tool format of this name parses as one of its channels.
CHANNELS = {
    form.name: form
    for form in (
        ReasoningFormat(
            "harmony",
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
        ReasoningFormat("solar", "<|think|>", "<|end|>", "<|end|><|begin|>assistant<|content|>"),
        ReasoningFormat("muse", "to=self<|message|>", "<|eom|>", "<|eom|><|start|>assistant to=user<|message|>"),
    )
}
# Templates that compose their tags.
_HINTS = {"think_opensource": ("'<think{}>'", ":opensource"), "kimi_k3": ("open_tag('think'", "<|open|>", "<|close|>")}


def detect_reasoning(template: str) -> ReasoningFormat | None:
    """Return the format whose tags are in a chat template, or None."""
    for form in reversed(REASONING_FORMATS):
        hints = _HINTS.get(form.name)
        if form.end in template or (hints is not None and all(hint in template for hint in hints)):
            return form
    return None


def reasoning_format(name: str) -> ReasoningFormat:
    """Return a format by its name.  RequestError if it is unknown."""
    for form in REASONING_FORMATS:
        if form.name == name:
            return form
    known = ", ".join(form.name for form in REASONING_FORMATS)
    raise RequestError(f"[chat] unknown reasoning_format {name!r:.80}: expected auto, none or one of {known}")


class ReasoningSplitter:
    """Splits an answer that arrives in pieces.  White space around the tags belongs to them."""

    def __init__(self, form: ReasoningFormat, opened: bool) -> None:
        """Create a splitter.  ``opened``: the prompt ended within reasoning."""
        self._scan = Scanner()
        self._reader: Steps | None = _read(self._scan, form, opened)

    def feed(self, text: str) -> list[Text]:
        """Split more of the answer; return the new parts."""
        self._scan.feed(text)
        return list(self._parts())

    def finish(self, cut: bool = False) -> list[Text]:
        """End the answer; return the remaining parts.

        If it was ``cut`` by its length, the beginning of a tag is dropped.
        """
        if cut and self._reader is not None:
            self._scan.drop()  # everything held is such a beginning
        self._scan.close()
        return list(self._parts())

    def _parts(self) -> Iterator[Text]:
        while self._reader is not None:
            try:
                part = next(self._reader)
            except (StopIteration, Malformed) as ended:
                taken = self._scan.commit()
                self._reader = None
                if taken and isinstance(ended, Malformed):
                    yield Text(Kind.CONTENT, taken)
                break
            if part is None:
                return
            assert isinstance(part, Text)
            self._scan.commit()
            yield part
        rest = self._scan.take_all()
        self._scan.commit()
        if rest:
            yield Text(Kind.CONTENT, rest)


def _read(scan: Scanner, form: ReasoningFormat, opened: bool) -> Steps:
    yield from scan.space()
    tag = yield from scan.optional(form.start, form.end)
    if tag is None and not opened:
        raise Malformed
    yield from scan.space()
    if tag == form.end:  # an empty one, which some models write
        return
    space = TrailingSpace()
    while True:
        part, end = scan.piece((form.end,))
        shown = space.push(part)
        if shown:
            yield Text(Kind.REASONING, shown)
        if end:
            break
        if end is not None:  # cut off, so white space at the end belongs to no tag
            yield Text(Kind.REASONING, space.pop())
            return
        if not part:
            yield None
    yield from scan.space()
