"""State shared by all requests: models, limits, metrics, stored responses."""
