"""Multiple-choice tasks in the file formats of llama-perplexity."""

from __future__ import annotations

import csv
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import LoadError

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

__all__ = ["Task", "read_hellaswag", "read_multiple_choice", "read_winogrande", "some_of_hellaswag", "some_of_tasks"]

_MOST_ANSWERS = 100
# If at least this many tokens follow the choice word, only those are scored.
_LEAST_TRAILING = 3


@dataclass(frozen=True)
class Task:
    """The choices of a task with their context, as token ids.

    Attributes:
        begin, end: The range of scored tokens of each choice.
        right: The indices of the right choices.
    """

    choices: tuple[list[int], ...]
    spans: tuple[tuple[int, int], ...]
    right: frozenset[int]


def _common_prefix(choices: Sequence[list[int]]) -> int:
    """Return the number of tokens that all choices share at the start, at least 1, as the first has no prediction."""
    n = 0
    for tokens in zip(*choices, strict=False):
        if len(set(tokens)) > 1:
            break
        n += 1
    return max(1, min(n, *(len(choice) - 1 for choice in choices)))


def _task(tokenizer: Tokenizer, texts: Sequence[bytes], right: frozenset[int]) -> Task:
    choices = tuple(tokenizer.encode(text) for text in texts)
    if min(map(len, choices)) < 2:
        raise LoadError("[tasks] a task has an empty context or choice")
    begin = _common_prefix(choices)
    return Task(choices, tuple((begin, len(choice)) for choice in choices), right)


def _random_words() -> Callable[[], int]:
    """Return a generator of 32-bit numbers: the Mersenne Twister with seed 1."""
    import numpy as np

    bits = np.random.MT19937()
    np.random.RandomState(bits).seed(1)
    return lambda: int(bits.random_raw())


def some_of_hellaswag(n: int, wanted: int) -> list[int]:
    """Return the tasks out of ``n`` that llama-perplexity takes, in its order (when built with GNU's C++ library)."""
    draw = _random_words()
    left, chosen = list(range(n)), []
    for _ in range(min(n, wanted)):
        size = len(left)
        product = draw() * size
        if product % 2**32 < size:
            while product % 2**32 < 2**32 % size:
                product = draw() * size
        chosen.append(left.pop(product >> 32))
    return chosen


def some_of_tasks(n: int, wanted: int) -> list[int]:
    """Return the tasks that it takes for WinoGrande and multiple choice; ``wanted`` 0 means all."""
    import numpy as np

    if not 0 < wanted < n:
        return list(range(n))
    draw = _random_words()
    left, chosen = list(range(n)), []
    for _ in range(wanted):
        at = int(np.float32(2**-32) * np.float32(draw()) * np.float32(len(left)))
        at = min(at, len(left) - 1)
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen


def read_hellaswag(tokenizer: Tokenizer, data: bytes, wanted: int) -> list[Task]:
    """Read tasks of six lines: the context, the number of the right ending, and four endings."""
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if not lines or len(lines) % 6:
        raise LoadError(f"[hellaswag] the file has {len(lines)} lines: expected six per task")
    tasks = []
    for i in some_of_hellaswag(len(lines) // 6, wanted):
        context, right, *endings = lines[6 * i : 6 * i + 6]
        if right.strip() not in (b"0", b"1", b"2", b"3"):
            raise LoadError(
                f"[hellaswag] line {6 * i + 2} is {right!r:.40}: expected the right ending's number, 0 to 3"
            )
        tasks.append(_task(tokenizer, [context + b" " + ending for ending in endings], frozenset((int(right),))))
    return tasks


def read_winogrande(tokenizer: Tokenizer, data: bytes, wanted: int) -> list[Task]:
    """Read lines of comma-separated values: a number, a sentence with a gap ``_``, two words, the right one (1 or 2).

    The tokens after the gap, except the last, are scored if there are more than a few.
    """
    rows = [row for row in csv.reader(data.decode("utf-8", "surrogateescape").splitlines()) if row]
    for number, row in enumerate(rows):
        if len(row) != 5 or "_" not in row[1] or row[4].strip() not in ("1", "2"):
            raise LoadError(
                f"[winogrande] malformed line {number + 1}: expected a number, a sentence with _, two words and 1 or 2"
            )
    if not rows:
        raise LoadError("[winogrande] no tasks in the file")
    return [_gap_task(tokenizer, rows[i]) for i in some_of_tasks(len(rows), wanted)]


def _gap_task(tokenizer: Tokenizer, row: Sequence[str]) -> Task:
    before, after = row[1].split("_", 1)
    heads = [(before + word).encode("utf-8", "surrogateescape") for word in row[2:4]]
    tail = after.encode("utf-8", "surrogateescape")
    task = _task(tokenizer, [head + tail for head in heads], frozenset((int(row[4]) - 1,)))
    begins = [begin for begin, _ in task.spans]
    if all(len(choice) - begins[0] > _LEAST_TRAILING for choice in task.choices):
        begins = [len(tokenizer.encode(head)) for head in heads]
    spans = []
    for choice, begin in zip(task.choices, begins, strict=True):
        start = min(begin, len(choice) - 1)
        spans.append((start, len(choice) - (1 if len(choice) - start > 1 else 0)))
    return Task(task.choices, tuple(spans), task.right)


class _Bytes:
    """Reads a sequence of numbers and texts."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, n: int) -> bytes:
        """Return the next ``n`` bytes."""
        if n > len(self._data) - self._at:
            raise LoadError(f"[multiple-choice] truncated file: {n} bytes needed at {self._at} of {len(self._data)}")
        self._at += n
        return self._data[self._at - n : self._at]

    def number(self) -> int:
        """Return the next uint32."""
        return int(struct.unpack("<I", self.take(4))[0])

    def text(self) -> bytes:
        """Return the next text, which is preceded by its length."""
        return self.take(self.number())

    def answers(self) -> tuple[list[bytes], list[int]]:
        """Return the next answers, with 1 for each right one."""
        n = self.number()
        if n > _MOST_ANSWERS:
            raise LoadError(f"[multiple-choice] a task has {n} answers, the limit is {_MOST_ANSWERS}")
        texts = [self.text() for _ in range(n)]
        return texts, [self.number() for _ in range(n)]


def read_multiple_choice(tokenizer: Tokenizer, data: bytes, wanted: int) -> list[Task]:
    """Read a binary file: the number of tasks, their offsets, then for each a question and two sets of answers.

    The first set, which has one right answer, is used.
    """
    reader = _Bytes(data)
    n_tasks = reader.number()
    if not 0 < n_tasks <= len(data) // 4:
        raise LoadError(f"[multiple-choice] the file says it has {n_tasks} tasks in {len(data)} bytes")
    reader.take(4 * n_tasks)
    found = []
    for _ in range(n_tasks):
        question = reader.text()
        answers, labels = reader.answers()
        reader.answers()
        if not question or len(answers) < 2 or not all(answers):
            raise LoadError("[multiple-choice] a task lacks its question, or has fewer than two answers")
        found.append((question, answers, labels))
    tasks = []
    for i in some_of_tasks(n_tasks, wanted):
        question, answers, labels = found[i]
        right = frozenset(i for i, label in enumerate(labels) if label == 1)
        tasks.append(_task(tokenizer, [question + b" " + answer for answer in answers], right))
    return tasks
