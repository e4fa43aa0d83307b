"""Answer questions from documents, with the source of each answer: embeddings, a reranker and chat in one process.

Passages and their vectors lie in SQLite; NumPy compares them.  The answer is one of the passages that were found, with
its number: the form of the answer allows nothing else, so that neither text nor source can be made up.

    python retrieval.py [CHAT.gguf [EMBEDDER.gguf [RERANKER.gguf]]]
"""

import re
import sqlite3
import sys
from contextlib import ExitStack

import numpy as np
from quire import LLM

DOCUMENTS = {
    "france.txt": "Paris is the capital of France. The Eiffel Tower was built in 1889.",
    "italy.txt": "Rome is the capital of Italy. Rome has many old temples.",
    "fox.txt": "The fox sleeps in a den. The fox hunts at night.",
    "bread.txt": "Bread is made of flour and water. Bread is baked in an oven.",
    "rocket.txt": "A rocket flies to the moon. A rocket needs much fuel.",
}


class Passages:
    """Passages with their vectors, in a database."""

    def __init__(self, path: str, embedder: LLM) -> None:
        self._embedder = embedder
        self._database = sqlite3.connect(path)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS passages (id INTEGER PRIMARY KEY, source TEXT, text TEXT UNIQUE, vector BLOB)"
        )

    def add(self, source: str, text: str) -> None:
        """Take in a document, a passage for each sentence."""
        texts = [sentence.strip() for sentence in re.findall(r"[^.!?]+[.!?]", text)]
        vectors = self._embedder.embed(texts, pooling="mean")  # [n_texts, n_hidden]
        rows = [(source, text, vector.tobytes()) for text, vector in zip(texts, vectors, strict=True)]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO passages (source, text, vector) VALUES (?, ?, ?)", rows)

    def nearest(self, question: str, n: int) -> list[tuple[str, str]]:
        """The sources and texts of the ``n`` passages nearest to a question, the nearest first."""
        rows = self._database.execute("SELECT source, text, vector FROM passages ORDER BY id").fetchall()
        vectors = np.stack([np.frombuffer(vector, np.float32) for _, _, vector in rows])  # [n_passages, n_hidden]
        # Vectors of a model that was trained to chat have a large part in common, which says nothing.
        common = vectors.mean(axis=0)
        wanted = self._embedder.embed(question, pooling="mean")[0] - common
        others = vectors - common
        scores = others @ wanted / np.linalg.norm(others, axis=1)
        return [rows[i][:2] for i in np.argsort(-scores, kind="stable")[:n]]

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def answer(question: str, passages: Passages, chat: LLM, reranker: LLM | None) -> tuple[str, str]:
    """A passage that answers the question, and the document that it stands in."""
    found = passages.nearest(question, 3 if reranker is None else 10)
    if reranker is not None:
        scores = reranker.rerank(question, [text for _, text in found])
        found = [found[i] for i in np.argsort(-scores, kind="stable")[:3]]
    quotes = [f"{text} [{number}]" for number, (_, text) in enumerate(found, 1)]
    shown = "\n".join(f"[{number}] {text}" for number, (_, text) in enumerate(found, 1))
    asked = [{"role": "user", "content": f"{shown}\n{question}"}]
    chosen = quotes.index(chat.chat(asked, temperature=0.0, choice=quotes).text)
    source, text = found[chosen]
    return text, source


def main(models: list[str]) -> None:
    with ExitStack() as stack:
        chat = stack.enter_context(LLM(models[0] if models else None))
        embedder = stack.enter_context(LLM(models[1])) if len(models) > 1 else chat
        reranker = stack.enter_context(LLM(models[2])) if len(models) > 2 else None
        passages = Passages(":memory:", embedder)  # a file's name, to keep them
        stack.callback(passages.close)
        for source, text in DOCUMENTS.items():
            passages.add(source, text)
        for question, expected in (
            ("What is the capital of France?", "france.txt"),
            ("When does the fox hunt?", "fox.txt"),
            ("What does a rocket need?", "rocket.txt"),
        ):
            quote, source = answer(question, passages, chat, reranker)
            print(f"{question} -> {quote} ({source})")
            if not models and (source != expected or quote not in DOCUMENTS[source]):
                raise SystemExit(f"the answer must stand in {expected}")


if __name__ == "__main__":
    main(sys.argv[1:])
