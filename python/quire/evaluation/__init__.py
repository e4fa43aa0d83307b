"""Measurements of models: importance, perplexity, divergence, multiple-choice tasks, and measured recipes."""
