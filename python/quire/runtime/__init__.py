"""The interpreter that Quire runs in, and the docstrings that its native classes show there."""
