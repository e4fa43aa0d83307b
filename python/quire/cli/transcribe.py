"""``quire transcribe``: write down what is said in recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .foreign_options import ForeignCommand
from .model_argument import named_first
from .model_options import ModelOptions, model_options
from .session import Session
from .text import note, one_line

if TYPE_CHECKING:
    from ..engine import Transcript

__all__ = ["command"]


@click.command("transcribe", cls=ForeignCommand)
@named_first("[MODEL] FILE...")
@model_options()
@click.option("--language", "--lang", "language", metavar="CODE",
              help="Language of the recordings, such as en [recognized].")  # fmt: skip
@click.option("--translate", is_flag=True, help="Translate into English.")
@click.option("--format", "form", type=click.Choice(("text", "json", "srt", "vtt")), default="text",
              help="Form of the transcript; all but text need a model that tells times [text].")  # fmt: skip
@click.option("--prompt", metavar="TEXT", help="Text that the recording continues, or names that occur in it.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the transcript to FILE.")  # fmt: skip
@click.pass_obj
def command(
    session: Session, *, words: tuple[str, ...], model: ModelOptions, language: str | None, translate: bool,
    form: Literal["text", "json", "srt", "vtt"], prompt: str | None, output: Path | None,
) -> None:  # fmt: skip
    """Print what is said in each FILE: WAV, MP3, FLAC or Ogg."""
    files = [Path(word) for word in words]
    if not files:
        raise click.UsageError("no file: use quire transcribe MODEL FILE")
    for i, file in enumerate(files):
        if not file.is_file():
            what = "no such model or recording" if i == 0 and len(files) > 1 else "file not found"
            raise click.UsageError(f"{what}: {one_line(str(file))}")
    if len(files) > 1 and form != "text":
        raise click.UsageError(f"--format {form} takes one file")
    with session.open(model) as llm:
        found = [
            llm.transcribe(
                file, language=language, prompt=prompt, task="translate" if translate else "transcribe",
                timestamps=form != "text",
            )
            for file in files
        ]  # fmt: skip
    shown = _shown(found, form)
    if output is None:
        print(shown)
        return
    output.write_text(shown + "\n", encoding="utf-8")
    note(f"wrote {one_line(str(output))}")


def _shown(found: list[Transcript], form: Literal["text", "json", "srt", "vtt"]) -> str:
    if form == "text":
        return "\n".join(each.text for each in found)
    from dataclasses import asdict

    from ..files.subtitles import srt, vtt

    (one,) = found
    if form == "json":
        return json.dumps(asdict(one), ensure_ascii=False)
    return (srt if form == "srt" else vtt)(one.segments).rstrip("\n")
