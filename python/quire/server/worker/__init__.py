"""The worker process, which holds a model, and the listener's side of it."""
