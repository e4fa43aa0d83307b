"""What all requests share: models, limits, figures, responses that were stored."""
