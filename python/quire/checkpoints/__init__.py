"""Read checkpoint folders of transformers and PEFT, and convert them to GGUF.

``reading/``     reads config.json and similar files strictly, and knows which fields transformers uses.
``mapping/``     has what model files use to map a checkpoint's keys and tensors to those of a GGUF file.
``formats/``     reads checkpoints that other programs quantized; one file per format.
``conversion/``  converts checkpoints and adapters, to a file or while a model is being opened.
"""
