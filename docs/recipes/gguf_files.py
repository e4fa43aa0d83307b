"""Read a GGUF file, share its tensors with NumPy, and write a copy with another name."""

import tempfile
from pathlib import Path

import numpy as np
import quire
from quire import GGUFReader, GGUFWriter


def main() -> None:
    source = Path(quire.__path__[0]) / "data" / "tiny-chat-q8_0.gguf"
    reader = GGUFReader(source)
    print(reader, reader.metadata.text("general.architecture"))
    norm = np.from_dlpack(reader.tensor("output_norm.weight"))  # no copy
    print(norm.dtype, norm.shape)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "copy.gguf"
        with GGUFWriter(target, reader.metadata.text("general.architecture")) as writer:
            writer.copy_metadata(reader.metadata, without=["general.name"])
            writer.set("general.name", "a copy")
            for info in reader.tensors:
                writer.add_tensor(info.name, info.dtype, info.shape)
            for info in reader.tensors:
                writer.write(info.name, reader.tensor(info.name))
        print(GGUFReader(target).metadata["general.name"], len(GGUFReader(target).tensors))


if __name__ == "__main__":
    main()
