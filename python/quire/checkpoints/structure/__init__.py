"""Read how transformers' classes compute that Quire has no file for.

``find`` runs such a class once, on random weights of small sizes (``observed``), records its calls (``recorder``),
describes them as operations that Quire has (``describing``, ``formulas``), and learns how checkpoints name its tensors
(``naming``).  A part without such an operation is an error that names it.  Code that lies in a model's folder is never
run, and inference uses the description alone (``models/described.py``).

Only ``document`` can be imported without torch and transformers.
"""

from .document import REVISION, Document

__all__ = ["REVISION", "Document"]
