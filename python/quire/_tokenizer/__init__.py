"""Native tokenizers (Cython): bytes and ids only; ``quire.tokenizer`` is the public face."""
