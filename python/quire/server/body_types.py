"""Base classes of the wire types of request bodies."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

__all__ = ["MEDIA", "Body", "Seconds", "TimedBody"]


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of wire types.  Only fields that the server honours are declared.

    Subclasses list other fields they know.  ``refused`` are unsupported fields that would change the answer, with the
    values that are accepted because they change nothing.  ``hints`` are fields that do not change the answer; they are
    ignored and named in a header of the reply.  ``inner`` gives the types of nested objects with such fields.
    """


# Media inputs.  Rejected wherever they are unsupported, because an answer that ignored them would be wrong.
MEDIA = frozenset(
    ("image_data", "image_url", "images", "input_image", "audio", "audio_data", "input_audio", "video", "video_url",
     "files", "multimodal_data", "mm_data")
)  # fmt: skip
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class TimedBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A body that may tighten the server's time limits.

    All limits count from the request's arrival: until it leaves the queue, until its first token, until it is complete.
    ``sse_ping_interval`` replaces the server's interval of silence, in seconds, before a stream sends a ping; 0 and -1
    turn pings off.
    """

    queue_timeout_s: Seconds | None = None
    first_token_timeout_s: Seconds | None = None
    request_timeout_s: Seconds | None = None
    sse_ping_interval: Annotated[float, msgspec.Meta(ge=-1, le=86_400)] | None = None
