"""Checkpoint folders of transformers and PEFT, and how they become GGUF files.

``reading/``     config.json and its like, read strictly, beside the fields that transformers knows.
``mapping/``     the vocabulary in which model files say which keys and tensors of a checkpoint become which of a file.
``formats/``     checkpoints that other programs quantized: one file per format.
``conversion/``  the conversion itself, to a file or while a model is opened; adapters too.
"""
