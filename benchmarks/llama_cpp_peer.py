"""Get llama.cpp's logits for small files, to compare on the same file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Peer"]

HERE = Path(__file__).resolve().parent


class Peer:
    """A process of llama.cpp that is given one path after the other.

    ``source`` is a checkout of llama.cpp, ``build`` the folder of its libraries (``build/bin``), ``work`` a folder for
    the compiled program.  For each prompt it computes the logits of all prompt tokens and of ``n_new`` greedy tokens
    except the last; with 0, an encoder's vectors.
    """

    def __init__(self, source: Path, build: Path, work: Path, prompts: Sequence[Sequence[int]], n_new: int = 1) -> None:
        program = Path(tempfile.mkdtemp(dir=work)) / "llama_logits"
        includes = [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]
        libraries = [f"-L{build}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{build}"]
        compiler = next(each for each in ("clang++-19", "clang++", "g++") if shutil.which(each))
        subprocess.run(
            [compiler, "-O1", "-std=c++17", *includes, str(HERE / "llama_logits.cpp"), "-o", str(program), *libraries],
            check=True,
        )
        (program.parent / "prompts").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in prompts))
        self.process = subprocess.Popen(
            [str(program), str(n_new), str(program.parent / "prompts")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def numbers(self, path: Path) -> npt.NDArray[np.float32] | None:
        """Return all rows of all prompts, flat; None if llama.cpp cannot open the file or exits."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        status, _, answered = self.process.stdout.readline().strip().partition(" ")
        if answered != str(path):
            raise RuntimeError(f"the answer is about {answered}: expected {path}")
        return np.fromfile(f"{path}.logits", np.float32) if status == "0" else None

    @staticmethod
    def complaint(path: Path) -> str:
        """Return the last line of the log about a file that did not open."""
        lines = Path(f"{path}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        wanted = [line for line in lines if any(word in line for word in ("error", "assert", "ASSERT", "failed"))]
        return (wanted or lines or ["it says nothing"])[0]
