"""``quire embed``: turn texts into vectors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..engine.requests.vectors import quantize_embeddings
from ..errors import RequestError
from .foreign_options import ForeignCommand
from .model_argument import named_first, text_of
from .model_options import ModelOptions, model_options
from .session import Session
from .text import note, one_line

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["command"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("embed", cls=ForeignCommand)
@named_first("[MODEL] [TEXT]...")
@model_options()
@click.option("-p", "--prompt", "texts", multiple=True, metavar="TEXT", help="A text to embed; may be repeated.")
@click.option("-f", "--file", "prompt_file", type=_FILE, metavar="FILE", help="Read texts from FILE, one per line.")
@click.option("--separator", "--embd-separator", "separator", default="\n", metavar="TEXT",
              help="Separator between texts in a file or on standard input [newline].")  # fmt: skip
@click.option("--pooling", type=click.Choice(("mean", "cls", "last")),
              help="How the vectors of all tokens are combined [the model's default].")  # fmt: skip
@click.option("--normalize/--no-normalize", default=True, help="Scale vectors to length 1 [on].")
@click.option("--dimensions", type=click.IntRange(min=1), metavar="N", help="Keep the first N numbers [all].")
@click.option("--precision", type=click.Choice(("float32", "int8", "uint8", "binary", "ubinary")), default="float32",
              help="Store vectors in fewer bits [float32].")  # fmt: skip
@click.option("--vectors", "kind", type=click.Choice(("dense", "sparse", "multi")), default="dense",
              help="One vector for each text, weights of tokens, or a vector for each token [dense].")  # fmt: skip
@click.option("--prompt-name", metavar="NAME", help="Put this named prompt of the model before each text: query, ...")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the vectors to FILE, in NumPy format if it ends in .npy, else as text.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in the format of OpenAI's embeddings.")
@click.pass_obj
def command(
    session: Session, *, words: tuple[str, ...], model: ModelOptions, texts: tuple[str, ...], prompt_file: Path | None,
    separator: str, pooling: str | None, normalize: bool, dimensions: int | None, precision: str, kind: str,
    prompt_name: str | None, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Print the vector of each TEXT as a JSON array, one per line.

    Without TEXT, each line of -f or of standard input is a text.  Texts longer than the model's context are truncated.
    With --vectors sparse, lines are objects of token ids with their weights; with multi, arrays of arrays.
    """
    if kind != "dense" and (pooling or dimensions or precision != "float32" or as_json or output is not None):
        raise click.UsageError(f"--vectors {kind} prints lines only: leave out the options of dense vectors")
    given = [*words, *texts]
    if prompt_file is not None:
        given += _lines(text_of(prompt_file), separator)
    if not given:
        if sys.stdin.isatty():
            raise click.UsageError("no text: use quire embed MODEL TEXT, or pipe texts in")
        given = _lines(sys.stdin.read(), separator)
    if not given:
        raise RequestError("[embed] no text: the input is empty")
    with session.open(model) as llm:
        if kind == "sparse":
            for sparse in llm.encode(given, output="sparse", prompt_name=prompt_name, truncate=True):
                print(json.dumps({str(id): float(f"{value:.8g}") for id, value in sparse.as_dict().items()}))
            return
        if kind == "multi":
            for rows in llm.encode(given, output="multi", normalize=normalize, prompt_name=prompt_name, truncate=True):
                print(f"[{', '.join(_rows(rows).splitlines())}]")
            return
        found = llm.embed(
            given, pooling=pooling, normalize=normalize, dimensions=dimensions, prompt_name=prompt_name, truncate=True  # type: ignore[arg-type]
        )  # fmt: skip
        vectors = quantize_embeddings(found, precision)  # type: ignore[arg-type]
        if output is not None and output.suffix == ".npy":
            import numpy as np

            np.save(output, vectors)
        else:
            shown = json.dumps(_as_object(llm.model_name, vectors)) if as_json else _rows(vectors)
            if output is None:
                print(shown)
                return
            output.write_text(shown + "\n", encoding="utf-8")
    note(f"wrote {one_line(str(output))}: {vectors.shape[0]} vectors of {vectors.shape[1]}")


def _lines(text: str, separator: str) -> list[str]:
    return [part for part in text.split(separator.replace("\\n", "\n")) if part.strip()]


def _rows(vectors: npt.NDArray[Any]) -> str:
    if vectors.dtype.kind != "f":
        return "\n".join(json.dumps(row) for row in vectors.tolist())
    return "\n".join(json.dumps([float(f"{value:.8g}") for value in row]) for row in vectors)


def _as_object(name: str, vectors: npt.NDArray[Any]) -> dict[str, object]:
    data = [{"object": "embedding", "index": i, "embedding": row.tolist()} for i, row in enumerate(vectors)]
    return {"object": "list", "model": name, "data": data}
