"""The interface of llama.cpp's server."""
