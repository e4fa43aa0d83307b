"""The process that holds a model, and the listener's end of it."""
