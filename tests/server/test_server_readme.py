"""The route that python/quire/server/README.md adds works as it is written there."""

from __future__ import annotations

import re
import sys
import textwrap
import types
from pathlib import Path

import pytest
import quire.server
from one_call import post
from quire.server import app

README = Path(quire.server.__path__[0]) / "README.md"


def test_the_example_of_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    code = [
        textwrap.dedent(block) for block in re.findall(r"   ```python\n(.*?)   ```", README.read_text("utf-8"), re.S)
    ]
    module = types.ModuleType("quire.server.routes.token_count")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.__dict__.update(__package__="quire.server.routes")
    exec(code[0], module.__dict__)
    (route,) = eval(code[1].strip(), {"Route": app.Route, "token_count": module})
    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, route))
    names = {"post": post}
    exec(code[2], names)
    names["test_tokens_are_counted"]()
