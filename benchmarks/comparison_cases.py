"""The lines of `compare_llama_cpp.py`'s table: the work for each file, and the results so far."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_costs import Work

__all__ = ["HEADING", "PACKAGE_TARGET", "TARGETS", "TYPES", "WORK", "Case"]

MODELS = ("qwen3-0.6b", "llama-3.2-1b", "tiny-chat")  # the last one is the package's
TYPES = ("Q4_K_M", "Q4_0", "Q8_0", "F16", "BF16")
WORK = {
    "prefill-512": Work(512, 0),
    "prefill-4096": Work(4096, 0),
    "decode": Work(0, 32),
    "decode-4k": Work(4096, 32),
    "streams-8": Work(1024, 16, 8),
    "shared-32": Work(1024, 16, 32, shared=True),
    "package": Work(0, 512),
}
# Target ratios to llama.cpp, in the order of TYPES, for all models or for one.
TARGETS = {
    "prefill-512": (5.0, 5.0, 5.0, 10.0, 10.0),
    "prefill-4096": (8.0, 8.0, 8.0, 10.0, 10.0),
    "decode": (1.6, 1.3, 1.05, 1.2, 1.2),
    "decode-4k qwen3-0.6b": (3.5, 3.5, 3.0, 2.5, 2.5),
    "decode-4k llama-3.2-1b": (4.0, 4.0, 3.5, 3.0, 3.0),
    "streams-8": (4.0, 4.0, 4.0, 4.0, 4.0),
    "shared-32": (6.0, 6.0, 6.0, 6.0, 6.0),
}
PACKAGE_TARGET = 2.0


@dataclass
class Case:
    """A line of the table."""

    row: str
    model: str
    dtype: str
    file: Path
    target: float
    llama_cpp: list[float] = field(default_factory=list)
    quire: list[float] = field(default_factory=list)
    openvino: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # relative to the speed that the limits allow
    limit: str = ""
    repack: bool = True
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # programs that failed

    @classmethod
    def of_report(cls, result: dict[str, Any]) -> Case:
        """Read a case from a report.  Programs that failed may be tried again."""
        known = {name: result[name] for name in cls.__dataclass_fields__}
        return cls(**known | {"file": Path(result["file"]), "failed": [], "notes": []})

    @property
    def key(self) -> tuple[str, str, str]:
        return self.row, self.model, self.dtype

    def place(self) -> tuple[int, int, int]:
        """Return the sort key of the line."""
        return MODELS.index(self.model), TYPES.index(self.dtype), list(WORK).index(self.row)

    def add_rounds(self, earlier: Case) -> None:
        """Put the rounds of an earlier case of the same work before this case's own."""
        if earlier.key == self.key:
            for name in ("llama_cpp", "quire", "openvino", "shares"):
                setattr(self, name, getattr(earlier, name) + getattr(self, name))
            self.repack, self.limit = earlier.repack, self.limit or earlier.limit

    def ratio(self) -> float | None:
        if not self.llama_cpp or not self.quire:
            return None
        return statistics.median(self.quire) / statistics.median(self.llama_cpp)

    def line(self) -> str:
        def median(values: list[float], form: str) -> str:
            return format(statistics.median(values), form) if values else "-"

        ratio = self.ratio()
        verdict = "-" if ratio is None else f"{ratio:.2f}"
        if ratio is not None and ratio >= self.target:
            verdict += " *"
        share = f"{median(self.shares, '.0%')} of {self.limit}" if self.shares else "-"
        cells = [
            self.row,
            f"{self.model} {self.dtype}",
            str(len(self.quire)),
            *(median(speeds, ".1f") for speeds in (self.llama_cpp, self.quire)),
            verdict,
            f"{self.target:g}",
            median(self.openvino, ".1f"),
            share,
        ]
        return f"| {' | '.join(cells)} |"


COLUMNS = ("work", "file", "rounds", "llama.cpp", "Quire", "ratio", "target", "OpenVINO GenAI", "Quire's share")
HEADING = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
