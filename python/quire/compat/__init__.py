"""Scripts of other libraries: ``quire.compat.llama_cpp`` for llama-cpp-python's, ``quire.compat.vllm`` for vLLM's.

Only what runs on Quire's engine is here: each argument is honoured, or means nothing here and is noted in the log, or
is refused by name.
"""
