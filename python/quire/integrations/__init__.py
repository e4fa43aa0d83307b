"""Quire inside other programs' frameworks, in one process and without a server.

The modules ``langchain``, ``llama_index``, ``llm`` and ``lm_eval`` are named like their frameworks.  Importing one
without its framework raises an ImportError that names the package to install.  Options are those of ``quire.LLM`` and
its verbs; an unknown one is a TypeError that names it.
"""
