"""``quire run``: one answer on standard output, and nothing else there."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import LoadError, RequestError, UnsupportedError
from ..sampling import SamplingParams
from .chat_options import ChatSettings, chat_options
from .foreign_options import ForeignCommand
from .model_argument import model_and_prompt, read_prompt
from .model_options import ModelOptions, model_options
from .sampling_options import sampling_options, with_advice
from .session import Session
from .text import Writer

if TYPE_CHECKING:
    from ..engine import LLM, GenerationResult

__all__ = ["command"]


@click.command("run", cls=ForeignCommand)
@model_and_prompt
@model_options()
@sampling_options
@chat_options
@click.option("--raw", is_flag=True, help="Complete the prompt as it is, without the chat template.")
@click.option("-cnv", "--conversation", is_flag=True, help="Talk on after the answer, as quire chat does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the answer is complete.")
@click.pass_obj
def command(
    session: Session,
    *,
    prompt: str | None,
    model: ModelOptions,
    params: SamplingParams,
    chat: ChatSettings,
    raw: bool,
    conversation: bool,
    as_json: bool,
) -> None:
    """Answer PROMPT with MODEL, through the model's chat template when it has one.

    MODEL is a .gguf file, a checkpoint folder or org/name of a hub; without it, the small one in the package answers.
    Without PROMPT, or with -, it is read from standard input.  The answer is streamed to standard output.
    """
    system = chat.system
    if raw and (system is not None or chat.keywords):
        raise click.UsageError("--system is part of a chat, and so is thinking: not with --raw")
    if conversation:
        if raw or as_json:
            raise click.UsageError("a conversation is shown as it goes: not with --raw or --json")
        from .chat import talk

        talk(session, model, params, chat, first=prompt)
        return
    path = model.path
    # Said before a prompt is waited for; otherwise the file is opened next.
    if prompt is None and path is not None and path.endswith(".gguf") and "://" not in path and not Path(path).exists():
        raise LoadError(f"[run] {path!r} must be a model's file but is not there")
    text = _read_prompt(prompt)
    with session.open(model) as llm:
        params = with_advice(params, llm.advised_sampling)
        if not raw and system is not None and llm.tokenizer.chat_template is None:
            raise UnsupportedError("[run] --system must have a chat template to stand in but the model has none")
        use_chat = not raw and llm.tokenizer.chat_template is not None
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        if as_json:
            result = llm.chat(messages, params, **chat.keywords) if use_chat else llm.generate(text, params)[0]
            print(json.dumps(_as_object(llm, result), ensure_ascii=False))
            return
        writer = Writer()
        answer = llm.chat_stream(messages, params, **chat.keywords) if use_chat else llm.stream(text, params)
        with closing(answer) as deltas:
            try:
                for delta in deltas:
                    writer.write(delta.text)
            finally:
                writer.end_line()


def _read_prompt(prompt: str | None) -> str:
    try:
        text = read_prompt(prompt, "run").decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"[run] the prompt must be UTF-8 but byte {error.start} is not") from None
    text = text.removesuffix("\n") if prompt in (None, "-") else text
    if not text:
        raise RequestError("[run] the prompt must have text but is empty")
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
