"""Models by name: what a name means, which files of models this machine has, and how further ones come from a hub."""
