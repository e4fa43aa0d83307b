"""From a model's name or file to a decoder that runs: devices, memory, kernels, drafters, and what the file advises."""
