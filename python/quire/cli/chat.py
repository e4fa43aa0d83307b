"""``quire chat``: a conversation in the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import QuireError, UnsupportedError
from ..sampling import SamplingParams
from .chat_options import ChatSettings, chat_options
from .demo_tools import DEFINITIONS, answer
from .foreign_options import ForeignCommand
from .model_argument import model_and_prompt
from .model_options import ModelOptions, model_options
from .sampling_options import sampling_options, with_advice
from .session import Session
from .text import Writer, note, one_line

if TYPE_CHECKING:
    from ..chat import ChatMessage, ToolCall
    from ..engine import LLM, ChatDelta

__all__ = ["command", "talk"]

HELP = """\
/help        this list
/reset       forget the conversation
/save FILE   write the conversation to FILE as JSON
/exit        leave (Ctrl-D too)
Ctrl-C stops an answer.  A line that ends in \\ goes on in the next one."""
PROMPT, MORE = "> ", "... "
MAX_ROUNDS = 5  # of tool calls in one turn


@click.command("chat", cls=ForeignCommand, short_help="Talk to a model.")
@model_and_prompt
@model_options()
@sampling_options
@click.option(
    "--tools", is_flag=True, help="Show the model a few demonstration tools, which touch nothing, and run its calls."
)
@chat_options
@click.option(
    "--history", type=click.Path(dir_okay=False), metavar="FILE", help="Keep the lines you type in FILE, too."
)
@click.pass_obj
def command(
    session: Session,
    *,
    prompt: str | None,
    model: ModelOptions,
    params: SamplingParams,
    chat: ChatSettings,
    tools: bool,
    history: str | None,
) -> None:
    """Talk to MODEL.  /help lists what can be typed beside messages; PROMPT is the first one."""
    talk(session, model, params, chat, first=prompt, tools=tools, history=history)


def talk(
    session: Session,
    model: ModelOptions,
    params: SamplingParams,
    chat: ChatSettings,
    *,
    first: str | None = None,
    tools: bool = False,
    history: str | None = None,
) -> None:
    """Open the model, answer ``first``, and talk until the user leaves."""
    with session.open(model) as llm:
        if llm.tokenizer.chat_template is None:
            raise UnsupportedError("[chat] the model must have a chat template but has none: use quire run --raw")
        _use_history(history)
        params = with_advice(params, llm.advised_sampling)
        Conversation(llm, params, chat, DEFINITIONS if tools else None).talk(first)
        _keep_history(history)


class Conversation:
    """The messages so far.  Between turns they end with an answer, or hold the system message at most."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        chat: ChatSettings,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        self._llm = llm
        self._params = params
        self._tools = tools
        system = chat.system
        self._keywords = chat.keywords
        self._start: list[dict[str, object]] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._saved: set[Path] = set()
        self._commands = {"/help": self._help, "/reset": self._reset, "/save": self._save}

    def talk(self, first: str | None = None) -> None:
        """Answer ``first``, then read and answer until the user leaves."""
        if first is not None and first != "-":
            self._answer(first)
        while True:
            try:
                text = _read_message()
            except EOFError:
                if sys.stdin.isatty():
                    print()
                return
            except KeyboardInterrupt:
                print()
                note("/exit or Ctrl-D leaves")
                continue
            if text.strip() in ("/exit", "/quit"):
                return
            if text.startswith("/"):
                self._obey(text)
            elif text.strip():
                self._answer(text)

    def _obey(self, text: str) -> None:
        name, _, argument = text.strip().partition(" ")
        if name not in self._commands:
            note(f"{one_line(name)} is unknown: /help lists what there is")
            return
        self._commands[name](argument.strip())

    def _answer(self, text: str) -> None:
        """Stream an answer, and run the tools that it calls.  What was said before Ctrl-C stays in the conversation; a
        failed turn does not."""
        messages: list[dict[str, object]] = [*self._messages, {"role": "user", "content": text}]
        try:
            for _ in range(MAX_ROUNDS):
                message = self._stream(messages)
                if message is None:
                    return
                messages.append(message.as_dict())
                if not message.tool_calls:
                    self._messages = messages
                    return
                messages += map(_run_tool, message.tool_calls)
        except QuireError as error:
            note(f"{one_line(str(error))} (/reset begins anew)")
            return
        note(f"the answer is dropped: the model called tools {MAX_ROUNDS} times without giving one")

    def _stream(self, messages: list[dict[str, object]]) -> ChatMessage | None:
        """Show an answer while it comes; None for one that was cancelled before it began.  Of one that was cancelled or
        cut only what was said counts: the last of its calls may be a beginning."""
        from ..chat.reply import joined

        parts: list[ChatDelta] = []
        finish_reason: str | None = None
        writer = Writer()
        try:
            answer = self._llm.chat_stream(messages, self._params, tools=self._tools, **self._keywords)
            with closing(answer) as deltas:
                for delta in deltas:
                    parts.append(delta)
                    writer.write(delta.content)
                    finish_reason = delta.finish_reason
        except KeyboardInterrupt:
            pass
        finally:
            writer.end_line()
        if finish_reason == "length":
            note("the answer ends here: it reached -n, or the context is full (/reset begins anew)")
        message = joined(parts) if parts else None
        if message is not None and finish_reason in (None, "cancelled", "length"):
            return replace(message, tool_calls=[])
        return message

    def _help(self, _: str) -> None:
        print(HELP)

    def _reset(self, _: str) -> None:
        self._messages = list(self._start)
        note("the conversation is forgotten")

    def _save(self, argument: str) -> None:
        if not argument:
            note("/save must have the name of a file")
            return
        path = Path(argument).expanduser()
        value = {"model": self._llm.model_name, "messages": self._messages}
        try:
            # Never over a file that is not this conversation's own.
            with path.open("w" if path.resolve() in self._saved else "x", encoding="utf-8") as file:
                json.dump(value, file, ensure_ascii=False, indent=2)
                file.write("\n")
        except OSError as error:
            note(f"[save] {one_line(str(path))}: {error.strerror}")
            return
        self._saved.add(path.resolve())
        note(f"saved {len(self._messages)} messages to {one_line(str(path))}")


def _run_tool(call: ToolCall) -> dict[str, object]:
    """The message with a call's result."""
    name, arguments = call.function.name, call.function.arguments
    result = answer(name, arguments)
    note(f"{one_line(name)} {one_line(arguments)} gives {one_line(result)}")
    return {"role": "tool", "tool_call_id": call.id, "name": name, "content": result}


def _read_message() -> str:
    """A line, with those that it is continued in.  EOFError at the end, KeyboardInterrupt for Ctrl-C."""
    is_terminal = sys.stdin.isatty()
    lines = [input(PROMPT if is_terminal else "")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(MORE if is_terminal else ""))
    return "\n".join(lines)


def _use_history(path: str | None) -> None:
    """Have the arrow keys bring back earlier lines, where Python has readline."""
    try:
        import readline
    except ImportError:
        if path is not None:
            raise UnsupportedError("[chat] --history must have Python's readline but it is not there") from None
        return
    if path is not None and os.path.exists(path):
        readline.read_history_file(path)


def _keep_history(path: str | None) -> None:
    if path is not None:
        import readline

        readline.set_history_length(1000)
        readline.write_history_file(path)
