"""Which mmproj file belongs to a model: in a repository on a hub, and among files on this machine.

Oracles: llama.cpp's rule (the nearest folder, then the most similar number of bits); folders laid out as each program
does it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from local_hub import local_hub
from quire.hub.projectors import best_projector, projector_of

FAKE = b"GGUF" + bytes(100)
THREE = ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]


@pytest.mark.parametrize(
    ("model", "paths", "expected"),
    [
        ("m-Q4_K_M.gguf", THREE, "mmproj-BF16.gguf"),
        ("m-F32.gguf", THREE, "mmproj-F32.gguf"),
        ("m-Q8_0.gguf", ["mmproj-m-F16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-Q8_0.gguf"),
        ("m-Q4_K_M.gguf", ["mmproj-m-F16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-Q8_0.gguf"),
        ("BF16/m-BF16-00001-of-00002.gguf", [*THREE, "BF16/mmproj-F32.gguf"], "BF16/mmproj-F32.gguf"),
        ("Q4/m-Q4_0.gguf", ["Q8/mmproj-Q4_0.gguf", "mmproj-F32.gguf"], "mmproj-F32.gguf"),
        ("m-Q4_0.gguf", ["Q4/mmproj-Q4_0.gguf"], None),
        ("m.gguf", ["m-other.gguf", "mmproj.txt", "README.md"], None),
        ("m-Q4_K_M.gguf", ["model-mmproj-f16.gguf"], "model-mmproj-f16.gguf"),
    ],
)
def test_the_projector_of_a_repository(model: str, paths: list[str], expected: str | None) -> None:
    assert best_projector(model, [model, *paths]) == expected
    assert best_projector(model, [*reversed(paths), model]) == expected


def made(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FAKE)


def test_the_only_projector_of_a_folder(tmp_path: Path) -> None:
    made(tmp_path, "a.gguf", "b.gguf")
    assert projector_of(tmp_path / "a.gguf") is None
    made(tmp_path, "a-mmproj.gguf")
    assert projector_of(tmp_path / "a.gguf") == tmp_path / "a-mmproj.gguf"
    made(tmp_path, "mmproj-b-F16.gguf")
    assert projector_of(tmp_path / "a.gguf") is None
    assert projector_of(tmp_path) == tmp_path
    assert projector_of(tmp_path / "absent" / "a.gguf") is None


def test_the_projector_in_a_flat_cache(tmp_path: Path) -> None:
    made(tmp_path, "org_a-GGUF_a-Q4_K_M.gguf", "org_a-GGUF_mmproj-F16.gguf", "org_b_b.gguf", "me_c_c-F16.gguf")
    made(tmp_path, "org_b_mmproj-b.gguf", "org_b_c_mmproj.gguf")
    assert projector_of(tmp_path / "org_a-GGUF_a-Q4_K_M.gguf") == tmp_path / "org_a-GGUF_mmproj-F16.gguf"
    assert projector_of(tmp_path / "org_b_b.gguf") == tmp_path / "org_b_mmproj-b.gguf"
    assert projector_of(tmp_path / "me_c_c-F16.gguf") is None


@pytest.mark.parametrize(
    "folder",
    [
        ".cache/huggingface/hub/models--org--m/snapshots/0123456789",
        ".lmstudio/models/org/m",
        ".cache/lm-studio/models/org/m",
    ],
)
def test_the_projector_of_a_store(tmp_path: Path, folder: str) -> None:
    made(tmp_path / folder, "Q8/m-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "m-F16.gguf")
    made((tmp_path / folder).parent / "other", "mmproj-F16.gguf")
    assert projector_of(tmp_path / folder / "Q8/m-Q8_0.gguf") == tmp_path / folder / "mmproj-Q8_0.gguf"
    assert projector_of(tmp_path / folder / "m-F16.gguf") == tmp_path / folder / "mmproj-F16.gguf"


def test_the_projector_of_an_ollama_manifest(tmp_path: Path) -> None:
    blobs, manifests = tmp_path / "blobs", tmp_path / "manifests" / "registry.ollama.ai" / "library"

    def blob(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        made(tmp_path, f"blobs/sha256-{digest}")
        return f"sha256:{digest}"

    def manifest(name: str, layers: list[tuple[str, str]]) -> None:
        (manifests / name).mkdir(parents=True, exist_ok=True)
        kinds = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest} for kind, digest in layers]
        (manifests / name / "latest").write_text(json.dumps({"layers": kinds}))

    seeing, text, lost = blob(b"1"), blob(b"2"), blob(b"3")
    manifest("llava", [("license", "sha256:" + "0" * 64), ("model", seeing), ("projector", blob(b"4"))])
    manifest("qwen", [("model", text), ("template", blob(b"5"))])
    manifest("lost", [("model", lost), ("projector", "sha256:" + "1" * 64)])
    found = {name: projector_of(blobs / name.replace(":", "-")) for name in (seeing, text, lost)}
    assert found == {seeing: blobs / blob(b"4").replace(":", "-"), text: None, lost: None}


def test_a_download_includes_the_projector(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    import subprocess
    import sys

    import quire

    files = {"m-Q8_0.gguf": FAKE, "mmproj-F16.gguf": FAKE + b"1", "mmproj-Q8_0.gguf": FAKE + b"2", "x.txt": b""}
    package = str(Path(quire.__file__).resolve().parents[1])
    with local_hub({"org/m-GGUF": files}) as hub:
        for options, expected in (
            (["--no-mmproj"], {"m-Q8_0.gguf"}),
            ([], {"m-Q8_0.gguf", "mmproj-Q8_0.gguf"}),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "quire", "pull", "org/m-GGUF", *options],
                capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
                env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": package,
                     "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            path = Path(done.stdout.strip())
            assert {each.name for each in path.parent.iterdir()} == expected
            assert ("mmproj-Q8_0.gguf" in done.stderr) == (len(expected) == 2)
    assert projector_of(path) == path.parent / "mmproj-Q8_0.gguf"
