"""A server for tests without a model and with short timeouts; run as a script, prints its address on standard error."""

from __future__ import annotations

import sys

from fake_engine import FakeEngine
from quire.server.serve import serve
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings

PATIENCE_S = 1.0
MOST_CONNECTIONS = 50
MOST_OF_ADDRESS = 40


class LongAnswers(FakeEngine):
    """Each answer is 20 MB at once, except for the prompts ``short`` (a short answer) and ``never`` (no answer)."""

    def submit(self, work):  # type: ignore[no-untyped-def]
        scripts = {"short": ["ab"], "never": None}
        self.answers = [scripts.get(getattr(work, "prompt", ""), ["x" * 10_000] * 2000)]
        return super().submit(work)


if __name__ == "__main__":
    limits = {f"{name}_timeout_s": PATIENCE_S for name in ("header", "body", "send")}
    limits |= {"max_connections": MOST_CONNECTIONS, "max_connections_per_address": MOST_OF_ADDRESS}
    settings = Settings(port=0, access_log=False, **limits)  # type: ignore[arg-type]
    serve(Service(settings, Library.of("fake", LongAnswers)), lambda text: print(text, file=sys.stderr, flush=True))
