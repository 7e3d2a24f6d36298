"""Other versions of the protocol, as far as a peer of this one meets them.

A later version may add fields to any message, and says in HELLO which versions it speaks. Either side may be
upgraded first.
"""

from dataclasses import dataclass

import msgspec

from ssd.draft.protocol.messages import OLDEST_VERSION, PROTOCOL_VERSION, Hello


@dataclass(frozen=True, slots=True)
class Version:
    newest: int = PROTOCOL_VERSION
    oldest: int = OLDEST_VERSION
    adds_fields: bool = False

    def hello(self, hello: Hello) -> Hello:
        return msgspec.structs.replace(hello, version=self.newest, oldest=self.oldest)

    def frame(self, frame: bytes) -> bytes:
        """A frame as this version would write it."""
        if not self.adds_fields:
            return frame
        messages = msgspec.msgpack.decode(frame)
        return msgspec.msgpack.encode([each | {"of_a_later_version": {"a": [1, None]}} for each in messages])

    @property
    def is_understood(self) -> bool:
        """Whether it settles on a version with this one."""
        return self.oldest <= PROTOCOL_VERSION


THIS = Version()
VERSIONS = (
    THIS,
    Version(adds_fields=True),
    Version(PROTOCOL_VERSION + 1, PROTOCOL_VERSION, adds_fields=True),
    Version(PROTOCOL_VERSION + 2, PROTOCOL_VERSION + 2, adds_fields=True),
)
"""The last one is refused: it is rolled back."""
