"""A server whose model is a script that calls one tool, for programs that run tools themselves.

Run it as a script; it prints its address and a line per request on standard error.  If the user's last message has a
path, the model calls the tool that reads files; given the result, it repeats it.  All code between the model and the
client is that of the real server.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

from fake_engine import FakeEngine
from quire.server.serve import serve
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings
from quire.server.worker.engine_client import Stream
from quire.server.worker.protocol import CallDelta, Chat, Delta, Finished, Started, Work

THINKING_S = 1.6  # long enough for a ping before the first token


class Reader(FakeEngine):
    """Calls ``Read`` or ``exec_command``, whichever the request has."""

    def submit(self, work: Work) -> Stream:
        if not isinstance(work, Chat):
            return super().submit(work)
        made, stream = self.open(work)
        delta, reason = self._answer(made.id, work)
        self.dispatch([Started(made.id, 3)])
        end = Finished(made.id, 0, reason, None, 3, 0, 2, 0.0, 0.001, 0.002)
        asyncio.get_running_loop().call_later(THINKING_S, self.dispatch, [delta, end])
        return stream

    def _answer(self, id_: int, work: Chat) -> tuple[Delta, str]:
        if work.messages[-1]["role"] == "tool":
            return Delta(id_, 0, f"It says: {_text(work.messages[-1])}", [1]), "stop"
        names = {tool["function"]["name"] for tool in work.options.get("tools", [])}
        asked = [
            found[0] for m in work.messages if m["role"] == "user" and (found := re.search(r"/\S+\.txt", _text(m)))
        ]
        if not asked or not names & {"Read", "exec_command"}:
            return Delta(id_, 0, "Nothing to read.", [1]), "stop"
        called = (
            ("Read", {"file_path": asked[-1]}) if "Read" in names else ("exec_command", {"cmd": f"cat {asked[-1]}"})
        )
        call = CallDelta(0, f"call_{id_}", called[0], json.dumps(called[1]))
        return Delta(id_, 0, "", [1], "", [call]), "tool_calls"


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


if __name__ == "__main__":
    settings = Settings(port=0, ping_s=0.5)
    serve(Service(settings, Library.of("reader", Reader)), lambda text: print(text, file=sys.stderr, flush=True))
