"""Files of sessions that nobody can have saved, and targets that no file may replace."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from quire.errors import LoadError
from quire.files.histories import HEAD, decode, encode
from quire.files.whole_file import WholeFile

pytestmark = pytest.mark.python_only


def test_a_history_is_read_as_it_was_saved() -> None:
    history = {"kind": "session", "messages": [{"role": "user"}], "tools": None, "token_ids": [1], "options": {}}
    assert decode(encode(history), "x") == history


@pytest.mark.parametrize(
    "body",
    [
        b"", b"x", b"\xff", b"[" * 100_000, b"5", b"[]", b'{"messages": 5}', b'{"messages": [5]}', b'{"tools": [5]}',
        b'{"token_ids": "x"}', b'{"token_ids": [1.5]}', b'{"computed_ids": [true]}', b'{"options": []}', b'{"text": 5}',
        b'{"model": null}',
    ],
)  # fmt: skip
def test_a_right_checksum_does_not_make_a_history(body: bytes) -> None:
    digest = hashlib.blake2b(body, digest_size=32).hexdigest().encode()
    with pytest.raises(LoadError, match=r"file\.x is damaged"):
        decode(HEAD + digest + b"\n" + body, "file.x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes in the file system")
def test_a_file_takes_no_place_but_that_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "folder", tmp_path / "pipe", f"{tmp_path}/a\x00b"):
        with pytest.raises(OSError, match=r"not a regular file|NUL"), WholeFile(target, "test"):
            pass
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "pipe"]
