"""``quire rerank``: rank documents by how well they answer a query."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from .foreign_options import ForeignCommand
from .model_argument import named_first, text_of
from .model_options import ModelOptions, model_options
from .session import Session
from .text import one_line

__all__ = ["command"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("rerank", cls=ForeignCommand)
@named_first("[MODEL] QUERY [DOCUMENT]...")
@model_options()
@click.option("-q", "--query", metavar="TEXT", help="The query; all arguments are then documents.")
@click.option("-f", "--file", "document_files", multiple=True, type=_FILE, metavar="FILE",
              help="Read documents from FILE, one per line; may be repeated.")  # fmt: skip
@click.option(
    "--instruction", metavar="TEXT", help="What makes a document relevant, for models that take an instruction."
)
@click.option("--top-n", type=click.IntRange(1), metavar="N", help="Show only the best N [all].")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object in the format of Jina's and Cohere's APIs."
)
@click.pass_obj
def command(
    session: Session, *, words: tuple[str, ...], model: ModelOptions, query: str | None,
    document_files: tuple[Path, ...], instruction: str | None, top_n: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Print each DOCUMENT with its score, best first; larger is better.

    MODEL is a reranker.  Without DOCUMENT, each line of -f or of standard input is a document.
    """
    rest = list(words)
    if query is None:
        if not rest:
            raise click.UsageError("no query: use quire rerank MODEL QUERY DOCUMENT...")
        query = rest.pop(0)
    documents = [*rest, *(line for path in document_files for line in text_of(path).splitlines() if line.strip())]
    if not documents and not sys.stdin.isatty():
        documents = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not documents:
        raise click.UsageError("no documents: give them after the query, or one per line with -f or on standard input")
    with session.open(model) as llm:
        scores = [float(score) for score in llm.rerank(query, documents, instruction=instruction, truncate=True)]
        name = llm.model_name
    order = sorted(range(len(documents)), key=lambda i: -scores[i])[:top_n]
    if as_json:
        results = [{"index": i, "relevance_score": scores[i], "document": {"text": documents[i]}} for i in order]
        print(json.dumps({"model": name, "results": results}, ensure_ascii=False))
        return
    for i in order:
        print(f"{scores[i]:10.4f}  {one_line(documents[i])}")
