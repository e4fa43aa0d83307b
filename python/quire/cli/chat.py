"""``quire chat``: talk to a model in the terminal."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ..errors import UnsupportedError
from ..params.sampling import SamplingParams
from ..params.tool_options import ToolOptions
from .chat_options import ChatSettings, chat_options
from .conversation import COMMANDS, LEAVE, Conversation
from .foreign_options import ForeignCommand
from .model_argument import model_and_prompt
from .model_options import ModelOptions, model_options
from .sampling_options import sampling_options, with_advice
from .session import Session
from .terminal_input import Keyboard
from .text import note
from .tool_options import tool_options

if TYPE_CHECKING:
    from ..engine import LLM
    from ..tools.toolbox import Toolbox

__all__ = ["command", "talk"]


@click.command("chat", cls=ForeignCommand)
@model_and_prompt
@model_options()
@sampling_options
@click.option("--tools", is_flag=True, help="Offer the model a few harmless demonstration tools and run its calls.")
@tool_options
@chat_options
@click.option(
    "--history", type=click.Path(dir_okay=False), metavar="FILE", help="Also save the lines you type to FILE."
)
@click.option("-v", "--verbose", is_flag=True, help="Show token counts and speed after each answer.")
@click.pass_obj
def command(
    session: Session,
    *,
    prompt: str | None,
    model: ModelOptions,
    params: SamplingParams,
    chat: ChatSettings,
    tools: bool,
    run_tools: ToolOptions,
    history: str | None,
    verbose: bool,
) -> None:
    """Talk to MODEL; PROMPT is the first message.  Type /help for a list of commands."""
    toolbox = _toolbox(run_tools, demo=tools) if tools or run_tools.mcp is not None else None
    talk(session, model, params, chat, first=prompt, toolbox=toolbox, history=history, verbose=verbose)


def _toolbox(options: ToolOptions, *, demo: bool) -> Toolbox:
    from ..tools.mcp_server import MCPServer
    from ..tools.toolbox import Toolbox
    from .demo_tools import demo_tools

    servers = [] if options.mcp is None else MCPServer.load(options.mcp)
    return Toolbox([*(demo_tools() if demo else []), *servers], options)


def talk(
    session: Session,
    model: ModelOptions,
    params: SamplingParams,
    chat: ChatSettings,
    *,
    first: str | None = None,
    toolbox: Toolbox | None = None,
    history: str | None = None,
    verbose: bool = False,
) -> None:
    """Open the model, answer ``first``, and talk until the user leaves."""
    with toolbox or nullcontext(), ExitStack() as opened:
        llm = opened.enter_context(session.open(model))
        _check(llm, chat)

        def open_model(name: str) -> LLM:
            """Open another model in place of the current one, which is closed."""
            other = session.open(replace(model, path=name))
            try:
                _check(other, chat)
            except UnsupportedError:
                other.close()
                raise
            opened.close()
            return opened.enter_context(other)

        params = with_advice(params, llm.advised_sampling)
        with closing(Keyboard([name.split()[0] for name in COMMANDS], history)) as keyboard:
            if sys.stdin.isatty() and sys.stdout.isatty():
                note(f"{llm.model_name} is ready; /help lists commands, Ctrl-D quits")
            conversation = Conversation(
                llm, params, chat,
                toolbox=toolbox, ask=keyboard.word, verbose=verbose, open_model=open_model,
            )  # fmt: skip
            _talk(conversation, keyboard, first)


def _check(llm: LLM, chat: ChatSettings) -> None:
    if llm.tokenizer.chat_template is None and chat.template is None:
        raise UnsupportedError(
            "[chat] the model has no chat template: give one with --chat-template, or use quire run --raw"
        )


def _talk(conversation: Conversation, keyboard: Keyboard, first: str | None) -> None:
    """Answer ``first``, then read and answer until the user leaves."""
    if first is not None and first != "-":
        conversation.answer(first)
    while True:
        beginning, conversation.to_edit = conversation.to_edit or "", None
        try:
            text = keyboard.message(beginning)
        except EOFError:
            if sys.stdin.isatty():
                print()
            return
        except KeyboardInterrupt:
            print()
            note("type /bye or press Ctrl-D to quit")
            continue
        if text.strip() in LEAVE:
            return
        if text.startswith("/") and "\n" not in text:
            conversation.obey(text)
        elif text.strip():
            conversation.answer(text)
