"""The interface of Ollama."""
