"""``quire batch``: answer the requests of a file."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ..errors import RequestError
from ..system import try_lock
from .chat_options import ChatSettings, chat_options
from .fetching import located
from .foreign_options import ForeignCommand
from .model_argument import named_first
from .model_options import ModelOptions, model_options
from .progress import progress_bar
from .sampling_options import sampling_defaults
from .text import note, one_line

if TYPE_CHECKING:
    from ..server.service.service import Service

__all__ = ["command"]

_DAY_S = 86_400
_ANSWER_START = b'{"id":"batch_req_'
_MORE_AT_ONCE = 32  # these wait, so that a finished request is followed by another at once


@click.command("batch", cls=ForeignCommand)
@named_first("[MODEL] IN OUT")
@model_options(server=True)
@sampling_defaults
@chat_options
def command(*, words: tuple[str, ...], model: ModelOptions, chat: ChatSettings, sampling: dict[str, Any]) -> None:
    """Answer the requests in IN, a file in the format of OpenAI's batches, and write a line for each to OUT.

    Each line of IN has custom_id, url (such as /v1/chat/completions) and body.  Answers are added to OUT as they are
    finished.  If the command was interrupted, run it again: it answers only the requests that OUT lacks.
    """
    from ..server.service.batch_lines import read_lines

    if len(words) != 2:
        raise click.UsageError("expected two files: quire batch [MODEL] IN OUT")
    source, out = Path(words[0]), Path(words[1])
    if not source.is_file():
        raise click.UsageError(f"file not found: {one_line(str(source))}")
    if out.is_dir() or (out.exists() and out.samefile(source)):
        raise click.UsageError(f"cannot write answers to {one_line(str(out))}: it is a folder or the file of requests")
    with source.open("rb") as file:
        known = {line.custom_id for line in read_lines(file)}
    with out.open("ab") as answers:
        if try_lock(answers) is False:
            raise RequestError(f"[batch] another command writes to {one_line(str(out))}")
        done = _answered(out, known, source)
        if done:
            note(f"{len(done)} of {len(known)} requests are already answered in {one_line(str(out))}")
        n_failed = 0
        if known - done:
            n_failed = asyncio.run(_run(_service(model, chat, sampling), source, answers, done, len(known)))
    note(f"answered {len(known)} requests" + (f"; {n_failed} of those answered now failed" if n_failed else ""))


def _answered(out: Path, known: set[str], source: Path) -> set[str]:
    """Return which of the known requests a file answers, and remove an answer that was not written to its end."""

    def refused(number: int) -> RequestError:
        return RequestError(f"[batch] {out} has something else in line {number} than an answer")

    found: set[str] = set()
    if not out.is_file():
        return found  # a pipe, for example
    number = whole = 0
    rest = b""
    with out.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                rest = line
                break
            whole += len(line)
            try:
                custom_id = str(json.loads(line)["custom_id"])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise refused(number) from None
            if custom_id not in known:
                raise RequestError(
                    f"[batch] {out} has answers of another batch: custom_id {custom_id!r:.80} is not in {source}"
                )
            found.add(custom_id)
    if rest:
        if not rest.startswith(_ANSWER_START[: len(rest)]):  # a file of something else is not ours to cut
            raise refused(number)
        os.truncate(out, whole)
    return found


def _service(model: ModelOptions, chat: ChatSettings, sampling: dict[str, Any]) -> Service:
    from ..server.service.service import open_service
    from ..server.settings import Settings
    from ..server.worker.launch import launch

    path = None if model.path is None else str(located(model.path, projector=model.wants_projector))
    settings = Settings(
        access_log=False, request_timeout_s=_DAY_S, max_queue=1024, max_queue_tokens=2**31 - 1, sampling=sampling,
        system=chat.system, chat_template=chat.template, defaults={"chat": chat.keywords} if chat.keywords else {},
    )  # fmt: skip
    return open_service(settings, path, model.config(), launch())


async def _run(service: Service, source: Path, answers: BinaryIO, done: set[str], n: int) -> int:
    """Answer what is not done; return how many answers are errors."""
    from ..server.app import build_app
    from ..server.service.batch_lines import read_lines
    from ..server.service.batch_runner import answer_lines
    from ..server.service.caller import Caller

    build_app(service)
    await service.start()
    n_failed, n_done = 0, len(done)
    try:
        with source.open("rb") as lines, progress_bar("answering") as advance:
            left = (line for line in read_lines(lines) if line.custom_id not in done)
            n_at_once = service.admission.n_running + _MORE_AT_ONCE
            async for _, status, answer in answer_lines(left, service.post, Caller(), n_at_once):
                answers.write(answer)
                answers.flush()
                n_failed += status >= 400
                n_done += 1
                advance(n_done, n, "")
    finally:
        await service.stop()
    return n_failed
