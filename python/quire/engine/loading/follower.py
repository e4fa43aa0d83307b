"""A process that runs a share of a model: ``python -m quire.engine.loading.follower``, started by rank 0.

Its standard input and output are the pipes of ``ranks.py``.
"""

from __future__ import annotations

import logging
import os
import sys

from ...errors import DeviceError, QuireError
from ...system import ignore_stops
from .loader import open_share
from .ranks import Follower, Opening

__all__ = ["main"]


def main() -> int:
    """Open the share of the model that the first message names, and run its steps."""
    ignore_stops()
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    logging.getLogger("quire").setLevel(logging.ERROR)  # rank 0 says the same
    opening = Opening.read(incoming)
    rank = Follower(opening, incoming, outgoing)
    try:
        open_share(opening.path, opening.config, rank)
    except DeviceError:  # another rank's failure, of which rank 0 tells
        return 1
    except QuireError as error:
        rank.refuse(error)
        rank.group.fail(str(error))
        return 1
    return 0


if __name__ == "__main__":
    # Threads that wait for rank 0 need not end first.
    code = main()
    sys.stderr.flush()
    os._exit(code)
