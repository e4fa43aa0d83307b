"""Quire inside other programs' frameworks, in one process and without a server.

``langchain``, ``llama_index``, ``llm`` and ``lm_eval`` are modules of the framework's name; each is imported only by
who asks for it, and says which package to install where that is absent.  They are thin: options are those of
``quire.LLM`` and its verbs, and one that is none is refused by name.
"""
