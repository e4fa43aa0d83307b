"""File formats and safe reading and writing: GGUF, safetensors, atomic writes, bounded regular expressions."""
