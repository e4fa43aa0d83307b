"""Quire: LLM inference from pages of KV cache."""
