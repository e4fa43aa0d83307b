"""The bases of the wire types of bodies."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

__all__ = ["MEDIA", "Body", "Seconds", "TimedBody"]


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of wire types: a field is declared only if it is honoured.

    A subclass's ``refused`` names fields that would change the answer and are not honoured, each with the values that
    ask for nothing; its ``hints`` those that would not, which are taken and named in a header of the reply; its
    ``inner`` the types of fields that have such fields themselves.
    """


# What an answer would be about: refused wherever no field takes it, never passed over as unknown.
MEDIA = frozenset(
    ("image_data", "image_url", "images", "input_image", "audio", "audio_data", "input_audio", "video", "video_url",
     "files", "multimodal_data", "mm_data")
)  # fmt: skip
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class TimedBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A body that may shorten the server's time limits, all from the request's arrival: until it leaves the queue,
    until its first token, until it is complete.

    ``sse_ping_interval``: seconds of silence after which its stream carries a ping, where not the server's own; -1 and
    0: none does.
    """

    queue_timeout_s: Seconds | None = None
    first_token_timeout_s: Seconds | None = None
    request_timeout_s: Seconds | None = None
    sse_ping_interval: Annotated[float, msgspec.Meta(ge=-1, le=86_400)] | None = None
