"""Quire together with similar libraries in one process, and in interpreters that it does not support."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from served import environment

ANSWER = "The capital of France is Paris."
ASK = """
from quire import LLM
with LLM(threads=1, n_ctx=256) as llm:
    answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0.0, max_tokens=16)
print(answer.message.content)
"""
OTHERS = {
    "numpy": "import numpy\nassert numpy.ones((64, 64)).dot(numpy.ones(64)).sum() == 4096",
    "torch": "import torch\nassert torch.ones(64, 64).mv(torch.ones(64)).sum() == 4096",
    "llama_cpp": "import llama_cpp\nllama_cpp.llama_backend_init()\nassert llama_cpp.llama_print_system_info()",
}
REFUSED = """
try:
    import quire
except ImportError as error:
    print(error)
"""
SUB_INTERPRETER = f"""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import quire, sys
code = "import sys\\nsys.path[:] = " + repr(sys.path) + {REFUSED!r} + "\\nsys.stdout.flush()"
run = getattr(interpreters, "exec", None) or interpreters.run_string
assert run(interpreters.create(), code) is None
"""
WITHOUT_LOCK = "import sys\nsys._is_gil_enabled = lambda: False\n" + REFUSED


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", OTHERS)
def test_beside(name: str) -> None:
    """Either may be imported first, and the other works before and after."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}")
    for program in (OTHERS[name] + ASK, ASK + OTHERS[name] + ASK):
        assert run(program).splitlines()[-1] == ANSWER


@pytest.mark.pythons
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (SUB_INTERPRETER, "[quire] sub-interpreters"),
        (WITHOUT_LOCK, "[quire] Python runs without the GIL"),
    ],
)
def test_refused_interpreters(program: str, said: str) -> None:
    message = run(program)
    assert message.startswith("[quire] ")
    assert said in message
