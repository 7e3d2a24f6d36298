"""A thread-safe LRU cache for grammars, limited by number and by size.

Keeps entries that were used in the last seconds even beyond the limits: a request is about to need them, and
the engine's thread would have to compile them again.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_MOST = 64
_MOST_BYTES = 128 << 20
_KEEP_SECONDS = 5.0
"""After its last use an entry is kept at least this long."""


@dataclass(slots=True)
class _Kept(Generic[Value]):
    value: Value
    num_bytes: int
    asked_at: float


class GrammarCache(Generic[Key, Value]):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Key, _Kept[Value]] = {}  # Least recently used first.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None:
                return None
            kept.asked_at = self._clock()
            self._kept[key] = kept
            return kept.value

    def put(self, key: Key, value: Value, num_bytes: int) -> None:
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = _Kept(value, num_bytes, self._clock())
            while self._is_too_full() and self._drop_oldest():
                pass

    def _is_too_full(self) -> bool:
        return len(self._kept) > _MOST or sum(each.num_bytes for each in self._kept.values()) > _MOST_BYTES

    def _drop_oldest(self) -> bool:
        key, oldest = next(iter(self._kept.items()))
        if self._clock() - oldest.asked_at < _KEEP_SECONDS:
            return False
        del self._kept[key]
        return True
