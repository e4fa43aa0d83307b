"""Measuring models: importance, perplexity, divergence, tasks with choices, and mixes chosen by measurement."""
