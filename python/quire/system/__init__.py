"""Functions that differ between operating systems, with the same names in ``posix.py`` and ``windows.py``.

``windows.py`` can be imported on every system, and the parts that do not call Windows work there.  Tests connect
listener and worker that way.
"""

from __future__ import annotations

import sys

from .lines import Lines

if sys.platform == "win32":
    from .windows import (
        EVENT_LOOP,
        GROUP,
        TRIES_GO_ON,
        allow_open_files,
        clock_of_this_thread,
        connect,
        connection_of,
        drop_input,
        end_group,
        ended_by,
        give_usual_mode,
        ignore_stops,
        input_waits,
        limit_memory,
        loaded_files,
        lower_priority,
        lower_thread_priority,
        machine_memory_bytes,
        open_below,
        peer_has_ended,
        peer_is_gone,
        process_memory,
        start_connected,
        sync_folder,
        taken_s,
        try_lock,
        try_within,
        was_killed,
    )
else:
    from .posix import (
        EVENT_LOOP,
        GROUP,
        TRIES_GO_ON,
        allow_open_files,
        clock_of_this_thread,
        connect,
        connection_of,
        drop_input,
        end_group,
        ended_by,
        give_usual_mode,
        ignore_stops,
        input_waits,
        limit_memory,
        loaded_files,
        lower_priority,
        lower_thread_priority,
        machine_memory_bytes,
        open_below,
        peer_has_ended,
        peer_is_gone,
        process_memory,
        start_connected,
        sync_folder,
        taken_s,
        try_lock,
        try_within,
        was_killed,
    )

__all__ = [
    "EVENT_LOOP",
    "GROUP",
    "TRIES_GO_ON",
    "Lines",
    "allow_open_files",
    "clock_of_this_thread",
    "connect",
    "connection_of",
    "drop_input",
    "end_group",
    "ended_by",
    "give_usual_mode",
    "ignore_stops",
    "input_waits",
    "limit_memory",
    "loaded_files",
    "lower_priority",
    "lower_thread_priority",
    "machine_memory_bytes",
    "open_below",
    "peer_has_ended",
    "peer_is_gone",
    "process_memory",
    "start_connected",
    "sync_folder",
    "taken_s",
    "try_lock",
    "try_within",
    "was_killed",
]
