"""The parameters that users set: sampling, the form of an answer, and the options of an engine."""
