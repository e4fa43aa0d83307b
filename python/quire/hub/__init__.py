"""Find models by name: on this machine, or on a hub to download from."""
