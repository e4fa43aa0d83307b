"""The HTTP server: one listener, the API dialects that clients speak, and engines behind a message protocol."""
