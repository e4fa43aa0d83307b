"""Statistics of the last minutes, with a fake clock."""

from __future__ import annotations

from quire.server.service.recent import Recent


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_ten_minutes_of_history() -> None:
    clock = Clock()
    recent = Recent(clock)
    assert recent.history() == []
    for i in range(100):  # one event every ten seconds
        clock.now_s = 1000.0 + 10 * i
        recent.add_requests(i)
        recent.add_requests(1)
        recent.add_tokens(20)
        for seconds in (0.5, 0.1, 9.0):
            recent.add_first_token(seconds)
    clock.now_s += 5
    history = recent.history()
    assert len(history) == 60
    assert history[-1] == {"seconds_ago": 5.0, "tokens_per_second": 2.0, "time_to_first_token_s": 0.5, "requests": 99}
    assert [row["requests"] for row in history] == list(range(40, 100))
    assert [row["seconds_ago"] for row in history][:2] == [595.0, 585.0]
    assert recent.figures()["time_to_first_token_s"] == 0.5
    clock.now_s += 3600
    assert recent.history() == []
    assert recent.figures() == {"tokens_per_second": 0.0, "time_to_first_token_s": None}


def test_idle_spans_have_no_rows() -> None:
    clock = Clock()
    recent = Recent(clock)
    recent.add_tokens(5)
    clock.now_s += 120
    recent.add_tokens(7)
    assert [(row["seconds_ago"], row["tokens_per_second"]) for row in recent.history()] == [(120.0, 0.5), (0.0, 0.7)]
