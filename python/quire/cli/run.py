"""``quire run``: print one answer, and nothing else, on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import LoadError, RequestError, UnsupportedError
from ..params.sampling import SamplingParams
from .chat_options import ChatSettings, chat_options
from .foreign_options import ForeignCommand
from .model_argument import model_and_prompt, read_prompt
from .model_options import ModelOptions, model_options
from .piped_input import beside_prompt, joined_with
from .sampling_options import sampling_options, with_advice
from .session import Session
from .stats import Clock
from .text import Writer, note, one_line

if TYPE_CHECKING:
    from ..engine import LLM, ChatDelta, Delta, GenerationResult

__all__ = ["command"]


@click.command("run", cls=ForeignCommand)
@model_and_prompt
@model_options()
@sampling_options
@chat_options
@click.option("--image", "images", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Show the model an image before PROMPT; may be repeated.")  # fmt: skip
@click.option("--audio", "sounds", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Play the model a recording before PROMPT; may be repeated.")  # fmt: skip
@click.option("--raw", is_flag=True, help="Complete the prompt as is, without the chat template.")
@click.option(
    "-cnv", "--conversation", is_flag=True, help="Continue as a conversation after the answer, like quire chat."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the answer is complete.")
@click.option("--no-stream", is_flag=True, help="Print the answer only when it is complete.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the answer to FILE.")  # fmt: skip
@click.option("--hide-thinking", is_flag=True, help="Leave out the thinking before the answer.")
@click.option("--verbose", is_flag=True, help="Print token counts and speed on standard error after the answer.")
@click.pass_obj
def command(
    session: Session,
    *,
    prompt: str | None,
    model: ModelOptions,
    params: SamplingParams,
    chat: ChatSettings,
    images: tuple[Path, ...],
    sounds: tuple[Path, ...],
    raw: bool,
    conversation: bool,
    as_json: bool,
    no_stream: bool,
    output: Path | None,
    hide_thinking: bool,
    verbose: bool,
) -> None:
    """Answer PROMPT with MODEL and print the answer as it arrives.

    MODEL is a name such as qwen3:0.6b or org/name, a .gguf file or a checkpoint folder; the default is a tiny model in
    the package.  Text on standard input goes before PROMPT, or is the prompt if there is none.  At a terminal without a
    prompt, quire run starts a conversation.
    """
    if raw and (chat.system is not None or chat.keywords):
        raise click.UsageError("--raw cannot be combined with --system or thinking options, which need a chat")
    if (images or sounds) and (raw or conversation):
        raise click.UsageError("--image and --audio cannot be combined with --raw or --conversation")
    media = [("image", path) for path in images] + [("audio", path) for path in sounds]
    answer = _Answer(raw, as_json, no_stream, output, hide_thinking, verbose, media)
    talks = prompt is None and sys.stdin.isatty() and sys.stdout.isatty() and not (raw or as_json or answer.output)
    if conversation or talks:
        if raw or as_json:
            raise click.UsageError("--conversation cannot be combined with --raw or --json")
        from .chat import talk

        talk(session, model, params, chat, first=prompt, verbose=answer.verbose)
        return
    path = model.path
    # Report a missing file before waiting for a prompt on standard input.
    if prompt is None and path is not None and path.endswith(".gguf") and "://" not in path and not Path(path).exists():
        raise LoadError(f"[run] model file not found: {path}")
    text = _read_prompt(prompt)
    with session.open(model) as llm:
        answer.print(llm, text, with_advice(params, llm.advised_sampling), chat)


@dataclass(frozen=True)
class _Answer:
    """How to produce and show the answer."""

    raw: bool
    as_json: bool
    no_stream: bool
    output: Path | None
    hide_thinking: bool
    verbose: bool
    media: Sequence[tuple[str, Path]] = ()

    def print(self, llm: LLM, text: str, params: SamplingParams, chat: ChatSettings) -> None:
        """Answer a text and show the answer."""
        has_template = llm.tokenizer.chat_template is not None or chat.template is not None
        if not self.raw and chat.system is not None and not has_template:
            raise UnsupportedError(
                "[run] --system needs a chat template, but the model has none (give one with --chat-template)"
            )
        use_chat = not self.raw and has_template
        keywords = chat.for_model(llm) if use_chat else {}
        if self.media and not use_chat:
            raise UnsupportedError("[run] --image and --audio need a chat template, but the model has none")
        content: object = text
        if self.media:
            content = [*({"type": kind, kind: path} for kind, path in self.media), {"type": "text", "text": text}]
        messages: list[dict[str, object]] = [{"role": "user", "content": content}]
        if chat.system is not None:
            messages.insert(0, {"role": "system", "content": chat.system})
        if self.as_json:
            result = llm.chat(messages, params, **keywords) if use_chat else llm.generate(text, params)[0]
            self._write(json.dumps(_as_object(llm, result), ensure_ascii=False) + "\n")
            return
        self._stream(llm.chat_stream(messages, params, **keywords) if use_chat else llm.stream(text, params))

    def _stream(self, answer: Generator[Delta | ChatDelta, None, None]) -> None:
        whole: list[str] = []
        writer = None if self.no_stream or self.output is not None else Writer()
        clock = Clock()
        with closing(answer) as deltas:
            try:
                for delta in deltas:
                    clock.tick(len(delta.token_ids))
                    text = getattr(delta, "content", delta.text) if self.hide_thinking else delta.text
                    if writer is None:
                        whole.append(text)
                    else:
                        writer.write(text)
            finally:
                if writer is not None:
                    writer.end_line()
        if writer is None:
            self._write("".join(whole))
        if self.verbose:
            note(str(clock.stats()))

    def _write(self, text: str) -> None:
        if self.output is not None:
            self.output.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
            note(f"wrote {one_line(str(self.output))}")
            return
        writer = Writer()
        writer.write(text)
        writer.end_line()


def _read_prompt(prompt: str | None) -> str:
    source = read_prompt(prompt, "run")
    if prompt not in (None, "-"):
        source = joined_with(beside_prompt(), source)
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"[run] the prompt is not UTF-8: byte {error.start}") from None
    text = text.removesuffix("\n") if prompt in (None, "-") else text
    if not text:
        raise RequestError("[run] empty prompt")
    return text


def _as_object(llm: LLM, result: GenerationResult) -> dict[str, object]:
    times = result.timings
    return {
        "model": llm.model_name,
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "n_prompt_tokens": result.n_prompt_tokens,
        "n_cached_tokens": result.n_cached_tokens,
        "timings": {"queue_s": times.queue_s, "prefill_s": times.prefill_s, "decode_s": times.decode_s},
    }
