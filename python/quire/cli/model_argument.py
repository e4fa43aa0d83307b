"""MODEL and PROMPT as arguments, in the ways that users of other programs write them."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import click

from ..errors import RequestError
from ..hub.locate import is_known_name
from ..hub.names import hub_name, is_local_model
from ..hub.short_names import nearest_name
from .model_completion import complete_model

__all__ = [
    "divided",
    "model_and_prompt",
    "model_argument",
    "model_option",
    "named_first",
    "names_a_model",
    "one_output",
    "read_prompt",
    "text_of",
]

Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]

model_option: Decorator = click.option(
    "-m", "--model", "path", metavar="MODEL", shell_complete=complete_model,
    help="A model's name, GGUF file or checkpoint folder [a tiny model in the package].",
)  # fmt: skip
_TAGGED = re.compile(r"[A-Za-z][\w.-]*:[\w.-]*\d[\w.-]*", re.ASCII)  # Ollama's names look like this, prompts do not
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(?:([nrt'"\\])|x([0-9a-fA-F]{2}))""")


def names_a_model(word: str) -> bool:
    """Return True if a word is the name of a model rather than text for it."""
    return is_local_model(word) or hub_name(word) is not None or is_known_name(word)


def divided(words: Sequence[str], path: str | None, prompt: str | None) -> tuple[str | None, str | None]:
    """Split words into model and prompt; ``path`` and ``prompt`` are the values of options.

    The first word is the model if it looks like one or if an option gives the prompt; the other words are the prompt.
    UsageError if the model or the prompt is given twice, or if the first word looks like an unknown model name.
    """
    rest = list(words)
    if path is not None:
        if rest and names_a_model(rest[0]):
            raise click.UsageError(f"the model is given twice: as {rest[0]!r:.80} and with -m")
    elif rest and (names_a_model(rest[0]) or prompt is not None):
        path = rest.pop(0)
    elif len(rest) > 1 or (rest and _TAGGED.fullmatch(rest[0])):
        near = nearest_name(rest[0])
        hint = f"did you mean {near}? " if near is not None else ""
        raise click.UsageError(
            f"no model named {rest[0]!r:.80}: not a .gguf file, a folder, org/name or a known name "
            f"({hint}quire list shows the models of this machine; quote a prompt of several words)"
        )
    if rest and prompt is not None:
        raise click.UsageError("the prompt is given twice: as an argument and with -p or -f")
    return path, " ".join(rest) if rest else prompt


def model_and_prompt(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``[MODEL] [PROMPT]``, ``-p`` and ``-f``.  The function gets ``path`` (also set by ``-m``) and ``prompt``."""

    @functools.wraps(function)
    def packed(
        *args: object, words: tuple[str, ...], prompt: str | None, prompt_file: Path | None, escape: bool,
        path: str | None, **values: object,
    ) -> None:  # fmt: skip
        if prompt is not None and prompt_file is not None:
            raise click.UsageError("give only one of -p and -f")
        if prompt is not None and escape and prompt != "-":
            prompt = _unescaped(prompt)
        if prompt_file is not None:
            prompt = text_of(prompt_file)
        from_hub = values.get("hf_repo")
        assert from_hub is None or isinstance(from_hub, str)
        found, prompt = divided(words, path or from_hub, prompt)
        path = path if found == from_hub else found
        function(*args, path=path, prompt=prompt, **values)

    decorated: Callable[..., None] = packed
    file_type = click.Path(exists=True, dir_okay=False, path_type=Path)
    options = (
        click.option(
            "-e/--no-escape", "--escape/ ", "escape", default=True,
            help=r"Interpret \n and other escapes in -p [on].",
        ),
        click.option("-f", "--file", "prompt_file", type=file_type, metavar="FILE", help="Read the prompt from FILE."),
        click.option("-p", "--prompt", "prompt", metavar="TEXT", help="The prompt; - reads standard input."),
        click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", shell_complete=complete_model),
    )  # fmt: skip
    for option in options:
        decorated = option(decorated)
    return decorated


def named_first(metavar: str) -> Decorator:
    """Add words, the first of which may name the model.  The function receives ``path`` and the remaining ``words``."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def packed(*args: object, words: tuple[str, ...], path: str | None, **values: object) -> None:
            if words and path is None and values.get("hf_repo") is None and names_a_model(words[0]):
                path, words = words[0], words[1:]
            function(*args, words=words, path=path, **values)

        return click.argument("words", nargs=-1, metavar=metavar, shell_complete=complete_model)(packed)

    return decorate


def model_argument(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``[MODEL]``.  The function receives ``path``, which ``-m`` also sets."""

    @functools.wraps(function)
    def packed(*args: object, model_path: str | None, path: str | None, **values: object) -> None:
        source = click.get_current_context().get_parameter_source("path")
        if model_path is not None and path is not None and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("the model is given twice: as an argument and with -m")
        function(*args, path=model_path or path, **values)

    return click.argument("model_path", metavar="[MODEL]", required=False, shell_complete=complete_model)(packed)


def one_output(argument: str | None, option: str | None) -> str | None:
    """Return the output file, given as an argument or with ``-o``.  UsageError if both are given."""
    if argument is not None and option is not None:
        raise click.UsageError(f"the output file is given twice: as {argument!r:.80} and with -o")
    return option if argument is None else argument


def read_prompt(prompt: str | None, command: str) -> bytes:
    """Return the prompt, or standard input if there is none or it is ``-``."""
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError(f"no prompt: use quire {command} MODEL TEXT, or pipe text in")
    return sys.stdin.buffer.read() if prompt is None or prompt == "-" else prompt.encode("utf-8", "surrogateescape")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[1]] if found[1] else chr(int(found[2], 16)), text)


def text_of(path: Path) -> str:
    """Return a file's text without its last newline.  RequestError if it is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"[prompt] cannot read {path.name} as UTF-8 text: {error!s:.100}") from error
