"""The program that ``trial`` runs: compiles grammars, one for each line, and says so.  It imports nothing of Quire.

Each is compiled in a fork, so that one that has to be ended does not cost another start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading


class _Bytes:
    """A vocabulary of the model's size, in which only bytes and control tokens can be drawn."""

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

    n_vocab, control_ids, eog_ids = settings["n_vocab"], settings["control_ids"], settings["eog_ids"]
    assert isinstance(n_vocab, int)
    assert isinstance(control_ids, dict)
    assert isinstance(eog_ids, list)
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(n_vocab, control_ids, eog_ids[0])), eos_token=eog_ids)
    print("ready", flush=True)
    for line in sys.stdin:
        processor_s, seconds, limits, grammar = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_PROF, processor_s)  # whose signal ends the process
            signal.alarm(seconds)  # also where nobody is left to do so
            matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits, verbose_errors=False))
            if not matcher.is_error():
                matcher.compute_bitmask()
            os._exit(0)
        _, status, usage = os.wait4(child, 0)
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
        print(json.dumps([usage.ru_utime + usage.ru_stime, ended_by]), flush=True)


def _be_patient(patience: int) -> None:
    """Leave the processor to the model, also where the system shares it out by sessions."""
    with contextlib.suppress(OSError):
        own = os.nice(patience)
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(own))


def main() -> None:
    """Read settings, then grammars, from standard input."""
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["path"]
    _be_patient(settings["patience"])
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (settings["max_bytes"], settings["max_bytes"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass  # where memory cannot be limited, time still is
    threading.stack_size(settings["stack_bytes"])
    thread = threading.Thread(target=_serve, args=(settings,))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
