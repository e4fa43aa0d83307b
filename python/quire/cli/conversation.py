"""A conversation in the terminal: its messages and its slash commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import QuireError
from ..params.request_fields import ELSEWHERE
from ..params.sampling import SamplingParams
from .stats import Clock, Stats
from .text import Writer, note, one_line

if TYPE_CHECKING:
    from ..chat import ChatMessage, ToolCall
    from ..engine import LLM, ChatDelta
    from ..tools.toolbox import Toolbox
    from .chat_options import ChatSettings

__all__ = ["COMMANDS", "Conversation"]

COMMANDS = {
    "/help": "show this list",
    "/reset": "forget the conversation",
    "/drop [off]": "drop the oldest turns when the conversation is too long",
    "/regen": "answer the last message again",
    "/edit [TEXT]": "change the last message and answer it again",
    "/set NAME VALUE": "change a sampling parameter (/set temperature 0.5); /set alone shows changed ones",
    "/system [TEXT]": "set or remove the system message; this restarts the conversation",
    "/save FILE": "write the conversation to FILE as JSON",
    "/load FILE": "continue a conversation written by /save",
    "/model [NAME]": "switch to another model; without NAME, show the current one",
    "/stats": "show token counts and speed of the last answer",
    "/bye": "quit (also /exit, /quit, Ctrl-D)",
}
LEAVE = ("/bye", "/exit", "/quit")


class Conversation:
    """The messages so far.  Between turns the last message is an answer, or there is at most a system message."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        chat: ChatSettings,
        *,
        toolbox: Toolbox | None = None,
        ask: Callable[[str], str | None] | None = None,
        verbose: bool = False,
        open_model: Callable[[str], LLM] | None = None,
    ) -> None:
        """``open_model`` opens a model by name for /model and closes the current one.

        ``ask`` returns what the user types after a question; None if nobody is there.
        """
        self.llm = llm
        self._params = params
        self._toolbox = toolbox
        self._ask = ask
        self._always: set[str] = set()
        self._verbose = verbose
        self._open_model = open_model
        self._stats: Stats | None = None
        system, self._chat = chat.system, chat
        self._keywords = chat.for_model(llm)
        self._start: list[dict[str, object]] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._saved: set[Path] = set()
        self._drops = False
        own = (self._help, self._reset, self._drop, self._regen, self._edit, self._set, self._system, self._save,
               self._load, self._model, self._show_stats)  # fmt: skip
        self._commands = {f"/{method.__name__.removeprefix('_').removeprefix('show_')}": method for method in own}
        self._commands["/clear"] = self._reset
        self.to_edit: str | None = None

    def obey(self, text: str) -> None:
        """Run a slash command."""
        name, _, argument = text.strip().partition(" ")
        if name not in self._commands:
            note(f"{one_line(name)} is not a command: /help lists them")
            return
        try:
            self._commands[name](argument.strip())
        except QuireError as error:
            note(one_line(str(error)))

    def answer(self, text: str) -> None:
        """Stream an answer and run the tools that it calls.

        After Ctrl-C, the text so far stays in the conversation.  A failed turn leaves no trace in it.
        """
        messages: list[dict[str, object]] = [*self._messages, {"role": "user", "content": text}]
        try:
            if self._toolbox is None:
                if (message := self._stream(messages)[0]) is not None:
                    self._messages = [*messages, message.as_dict()]
            else:
                self._answer_with_tools(messages, self._toolbox)
        except QuireError as error:
            note(f"{one_line(str(error))} ({self._advice})")
        except KeyboardInterrupt:
            note("answer dropped: interrupted")

    def _answer_with_tools(self, messages: list[dict[str, object]], toolbox: Toolbox) -> None:
        from ..tools import event_thread
        from ..tools.loop import ToolLoop

        loop = ToolLoop(messages, toolbox, approve=self._approve)
        while True:
            message, finish_reason = self._stream(loop.messages, **loop.keywords)
            if message is None:
                return
            calls = loop.take(message, finish_reason)
            if not calls:
                self._messages = loop.messages
                return
            for run in event_thread.run(loop.run(calls, loop.allowed(calls))):
                outcome = "failed:" if run.result.is_error else "returned"
                note(f"{_shown(run.call)} {outcome} {one_line(run.result.text)}")

    def _approve(self, call: ToolCall) -> bool:
        """Ask the user about a call.  Nobody there means no."""
        name = call.function.name
        if name in self._always:
            return True
        said = None if self._ask is None else self._ask(f"run {_shown(call)}? [y]es, [n]o, [a]lways: ")
        word = (said or "").strip().lower()
        if word in ("a", "always"):
            self._always.add(name)
        return word in ("y", "yes", "a", "always")

    def _stream(self, messages: list[dict[str, object]], **tools: Any) -> tuple[ChatMessage | None, str | None]:
        """Print an answer as it arrives, and return it with the reason of its end; None if it did not begin."""
        from ..chat.reply import joined

        parts: list[ChatDelta] = []
        finish_reason: str | None = None
        writer = Writer(wrap=True)
        clock = Clock()
        try:
            keywords = {**self._keywords, **self._limit(), **tools}
            with closing(self.llm.chat_stream(messages, self._params, **keywords)) as deltas:
                for delta in deltas:
                    clock.tick(len(delta.token_ids))
                    parts.append(delta)
                    writer.write(delta.content)
                    finish_reason = delta.finish_reason
        except KeyboardInterrupt:
            pass
        finally:
            writer.end_line()
        self._stats = clock.stats()
        if self._verbose:
            note(str(self._stats))
        if finish_reason == "length":
            note(f"the answer was cut off: it reached the limit of -n or of the context ({self._advice})")
        return (joined(parts) if parts else None), finish_reason

    @property
    def _advice(self) -> str:
        """Advice for a full context."""
        return "/reset starts over" if self._drops else "/drop drops the oldest turns, /reset starts over"

    def _limit(self) -> dict[str, int]:
        """Return the keyword of ``chat_stream`` that lets it drop the oldest turns."""
        from ..params.sampling_defaults import most_prompt_tokens

        return {"max_prompt_tokens": most_prompt_tokens(self.llm.n_ctx, self._params.max_tokens)} if self._drops else {}

    def _drop(self, argument: str) -> None:
        self._drops = argument != "off"
        note("will drop the oldest turns when the conversation is too long" if self._drops else "will keep all turns")

    def _help(self, _: str) -> None:
        width = max(map(len, COMMANDS))
        print("\n".join(f"{name:<{width}}  {text}" for name, text in COMMANDS.items()))
        print("Ctrl-C stops an answer.  End a line with \\ to continue on the next one.")
        print('""" starts and ends a message of several lines.')

    def _reset(self, _: str) -> None:
        self._messages = list(self._start)
        note("conversation cleared")

    def _take_last(self) -> str | None:
        """Remove the last user message and everything after it; return its text."""
        for i in reversed(range(len(self._messages))):
            if self._messages[i]["role"] == "user":
                text = str(self._messages[i]["content"])
                self._messages = self._messages[:i]
                return text
        note("no message yet")
        return None

    def _regen(self, _: str) -> None:
        text = self._take_last()
        if text is not None:
            self.answer(text)

    def _edit(self, argument: str) -> None:
        text = self._take_last()
        if text is None:
            return
        if argument:
            self.answer(argument)
        else:
            self.to_edit = text  # the prompt opens with this text, ready to edit

    def _set(self, argument: str) -> None:
        if not argument:
            usual = SamplingParams()
            values = {entry.name: getattr(self._params, entry.name) for entry in fields(SamplingParams)}
            changed = [f"{name} {value}" for name, value in values.items() if value != getattr(usual, name)]
            note("; ".join(changed) or "all parameters have their defaults")
            return
        name, _, text = argument.partition(" ")
        name = ELSEWHERE.get(name, name).replace("-", "_")
        if name == "verbose":
            self._verbose = text.strip() not in ("off", "false", "0")
            return
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        try:
            self._params = replace(self._params, **{name: value})
        except TypeError:
            note(f"cannot set {one_line(name)} to {one_line(text)}: no such sampling parameter, or a wrong type")

    def _system(self, argument: str) -> None:
        self._start = [{"role": "system", "content": argument}] if argument else []
        self._reset("")

    def _save(self, argument: str) -> None:
        if not argument:
            note("no file name: use /save FILE")
            return
        path = Path(argument).expanduser()
        value = {"model": self.llm.model_name, "messages": self._messages}
        try:
            # Overwrite only files that this conversation wrote itself.
            with path.open("w" if path.resolve() in self._saved else "x", encoding="utf-8") as file:
                json.dump(value, file, ensure_ascii=False, indent=2)
                file.write("\n")
        except OSError as error:
            note(f"[save] {one_line(str(path))}: {error.strerror}")
            return
        self._saved.add(path.resolve())
        note(f"saved {len(self._messages)} messages to {one_line(str(path))}")

    def _load(self, argument: str) -> None:
        path = Path(argument).expanduser()
        try:
            messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
            roles = [message["role"] for message in messages]
        except OSError as error:
            note(f"[load] {one_line(str(path))}: {error.strerror}")
            return
        except (ValueError, KeyError, TypeError):
            note(f"[load] {one_line(str(path))} is not a conversation written by /save")
            return
        self._messages = messages
        self._start = messages[:1] if roles[:1] == ["system"] else []
        note(f"{len(messages)} messages loaded")

    def _model(self, argument: str) -> None:
        if not argument:
            note(one_line(self.llm.model_name))
        elif self._open_model is None:
            note("this session cannot switch models")
        else:
            self.llm = self._open_model(argument)
            self._keywords = self._chat.for_model(self.llm)
            note(f"{one_line(self.llm.model_name)} is ready")

    def _show_stats(self, _: str) -> None:
        note(str(self._stats) if self._stats is not None else "no answer yet")


def _shown(call: ToolCall) -> str:
    """Return a call in one line, whole, and without characters that a terminal would obey."""
    return f"{one_line(call.function.name)} {one_line(call.function.arguments)}"
