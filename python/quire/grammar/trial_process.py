"""The program that ``trial`` runs: compiles one grammar per line of input and reports the outcome.

Each grammar is compiled in a fork if the system has forks, so that ending it does not cost another start.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from typing import Any


class _Bytes:
    """A vocabulary of the model's size with nothing but single bytes and control tokens."""

    bos_token_id = None

    def __init__(self, n_vocab: int, control_ids: dict[str, int], eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.special_token_ids = sorted(control_ids.values())
        self.tokens = [b""] * n_vocab
        for name, id_ in control_ids.items():
            self.tokens[id_] = name.encode()
        free = (id_ for id_ in range(n_vocab) if not self.tokens[id_])
        self._ids = dict(zip(range(256), free, strict=False))
        for byte, id_ in self._ids.items():
            self.tokens[id_] = bytes([byte])

    def __call__(self, text: bytes | str) -> list[int]:
        return [self._ids[byte] for byte in (text.encode() if isinstance(text, str) else text)]


def _serve(settings: dict[str, object]) -> None:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
    from llguidance._lib import LLParserLimits

    from quire.system import TRIES_GO_ON, try_within

    def compiled(grammar: str, limits: dict[str, Any]) -> None:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits, verbose_errors=False))
        if not matcher.is_error():
            matcher.compute_bitmask()

    n_vocab, control_ids, eog_ids = settings["n_vocab"], settings["control_ids"], settings["eog_ids"]
    assert isinstance(n_vocab, int)
    assert isinstance(control_ids, dict)
    assert isinstance(eog_ids, list)
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(n_vocab, control_ids, eog_ids[0])), eos_token=eog_ids)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        processor_s, seconds, limits, grammar = json.loads(line)
        taken_s, how = try_within(partial(compiled, grammar, limits), processor_s, seconds)
        print(json.dumps([taken_s, how]), flush=True)
        if how != "done" and not TRIES_GO_ON:
            os._exit(1)


def main() -> None:
    """Read settings, then grammars, from standard input."""
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["path"]
    from quire.system import limit_memory, lower_priority

    lower_priority(settings["patience"])
    limit_memory(settings["max_bytes"])  # some systems limit only time
    threading.stack_size(settings["stack_bytes"])
    thread = threading.Thread(target=_serve, args=(settings,))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
