"""vendor/fetch.py on a small archive: what it rejects, keeps and does not touch.  Nothing is downloaded."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = "package-1.0"
WANTED = {
    "LICENSE": b"terms",
    "CMakeLists.txt": b"project(ggml)",
    "include/ggml.h": b"#pragma once",
    "src/deep/ggml.c": b"int x;",
}
OTHER = {
    "setup.py": b"raise SystemExit(1)",
    "vendor/llama.cpp/src/llama.cpp": b"int y;",
    "vendor/llama.cpp/ggml-extra/x.c": b"int z;",
}


@pytest.fixture
def fetch(tmp_path: Path) -> ModuleType:
    """Import the script from a copy, with a pin file next to it."""
    path = ROOT / "vendor" / "fetch.py"
    if not path.is_file():
        pytest.skip("the vendor folder is missing: this is not a source tree")
    spec = importlib.util.spec_from_file_location("quire_vendor_fetch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HERE = tmp_path / "vendor"
    module.HERE.mkdir()
    return module


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{TOP}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo(f"{TOP}/vendor/llama.cpp/ggml/src/link.c")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        tar.addfile(link)
        escape = tarfile.TarInfo(f"{TOP}/vendor/llama.cpp/ggml/../../../escaped.c")
        tar.addfile(escape)


def members() -> dict[str, bytes]:
    inside = {f"vendor/llama.cpp/ggml/{name}": data for name, data in WANTED.items() if name != "LICENSE"}
    return {**OTHER, **inside, "vendor/llama.cpp/LICENSE": WANTED["LICENSE"]}


@pytest.fixture
def offer(fetch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Provide an archive for `download` and pin it, by its hash or another; return the list of calls."""

    def put(files: dict[str, bytes], sha256: str | None = None) -> list[Path]:
        archive = tmp_path / "archive.tar.gz"
        write_archive(archive, files)
        pin = {
            "package": "package",
            "package_version": "1.0",
            "archive": archive.name,
            "sha256": sha256 or hashlib.sha256(archive.read_bytes()).hexdigest(),
            "folder": "vendor/llama.cpp/ggml",
            "licence": "vendor/llama.cpp/LICENSE",
        }
        lines = [f'{key} = "{value}"' for key, value in pin.items()]
        (fetch.HERE / "ggml.toml").write_text("\n".join(lines), encoding="utf-8")
        calls: list[Path] = []

        def download(_: dict[str, str], folder: Path) -> Path:
            calls.append(folder)
            target = folder / archive.name
            target.write_bytes(archive.read_bytes())
            return target

        monkeypatch.setattr(fetch, "download", download)
        return calls

    return put


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_keeps_ggml_and_its_licence_only(fetch: ModuleType, offer: Callable[..., list[Path]]) -> None:
    offer(members())
    fetch.main([])
    found = tree(fetch.HERE / "ggml")
    stamp = found.pop("QUIRE-PIN").decode().strip()
    assert found == WANTED
    assert stamp == fetch.read_pin(fetch.HERE / "ggml.toml")["sha256"]
    assert sorted(p.name for p in fetch.HERE.iterdir()) == ["ggml", "ggml.toml"]


def test_another_destination(fetch: ModuleType, offer: Callable[..., list[Path]], tmp_path: Path) -> None:
    offer(members())
    fetch.main([str(tmp_path / "elsewhere" / "ggml")])
    assert (tmp_path / "elsewhere" / "ggml" / "LICENSE").read_bytes() == b"terms"
    assert not (fetch.HERE / "ggml").exists()


def test_a_wrong_hash_is_refused_and_leaves_nothing(fetch: ModuleType, offer: Callable[..., list[Path]]) -> None:
    offer(members(), sha256="0" * 64)
    with pytest.raises(SystemExit, match=r"\[vendor\] .*archive\.tar\.gz: [0-9a-f]{64} instead of 0{64}"):
        fetch.main([])
    assert [p.name for p in fetch.HERE.iterdir()] == ["ggml.toml"]


@pytest.mark.parametrize("missing", ["LICENSE", "ggml/CMakeLists.txt", "ggml/include/ggml.h"])
def test_an_archive_without_ggml_leaves_the_old_copy(
    fetch: ModuleType, offer: Callable[..., list[Path]], missing: str
) -> None:
    old = fetch.HERE / "ggml"
    old.mkdir()
    (old / "QUIRE-PIN").write_text("an older pin")
    files = members()
    del files[f"vendor/llama.cpp/{missing}"]
    offer(files)
    with pytest.raises(SystemExit, match=missing.removeprefix("ggml/")):
        fetch.main([])
    assert tree(old) == {"QUIRE-PIN": b"an older pin"}


def test_the_stamp_saves_the_download(fetch: ModuleType, offer: Callable[..., list[Path]]) -> None:
    calls = offer(members())
    fetch.main([])
    (fetch.HERE / "ggml" / "marker").write_text("kept")
    fetch.main([])
    assert len(calls) == 1
    assert (fetch.HERE / "ggml" / "marker").exists()


def test_another_pin_replaces_everything(fetch: ModuleType, offer: Callable[..., list[Path]]) -> None:
    offer(members())
    fetch.main([])
    (fetch.HERE / "ggml" / "marker").write_text("old")
    files = members()
    files["vendor/llama.cpp/ggml/src/deep/ggml.c"] = b"int x = 2;"
    offer(files)
    fetch.main([])
    assert tree(fetch.HERE / "ggml")["src/deep/ggml.c"] == b"int x = 2;"
    assert not (fetch.HERE / "ggml" / "marker").exists()


def test_an_incomplete_pin_is_named(fetch: ModuleType) -> None:
    (fetch.HERE / "ggml.toml").write_text('package = "p"\nsha256 = "0"\n', encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks archive, folder, licence, package_version"):
        fetch.main([])


def test_the_committed_pin_is_complete(fetch: ModuleType) -> None:
    pin = fetch.read_pin(ROOT / "vendor" / "ggml.toml")
    assert len(bytes.fromhex(pin["sha256"])) == 32
    assert pin["archive"].endswith(f"{pin['package_version']}.tar.gz")


def test_edits_find_their_places_and_are_made_once() -> None:
    path = ROOT / "vendor" / "edits.py"
    if not (ROOT / "vendor" / "ggml" / "src").is_dir():
        pytest.skip("ggml is not unpacked: this is not a source tree that was built")
    spec = importlib.util.spec_from_file_location("quire_vendor_edits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    assert len({(edit.path, edit.before) for edit in module.EDITS}) == len(module.EDITS)
    for edit in module.EDITS:
        text = (ROOT / "vendor" / "ggml" / edit.path).read_text(encoding="utf-8")
        edited = module.edited(text, edit)
        assert edited.count(edit.before) == 1
        assert module.edited(edited, edit) == edited
        with pytest.raises(SystemExit, match="was written for another version of ggml"):
            module.edited(text.replace(edit.before, "").replace(edit.first, "other"), edit)
