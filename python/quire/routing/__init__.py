"""Send requests to several servers of the same model, each to the one that has read the most of its prompt.

``prefixes`` makes hashes of a request's beginning, ``policy`` chooses a replica, ``replicas`` knows which ones are
there, and ``front`` is the HTTP server of ``quire route``.
"""
