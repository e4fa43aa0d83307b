"""The HTTP server: one listener, the dialects that clients speak, and engines behind messages."""
