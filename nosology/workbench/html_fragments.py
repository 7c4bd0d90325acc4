"""Parts of pages that many requests show, such as a row of the queue: rendered once and kept in memory.

After the deletion of a note, `forget_texts` clears them, and whatever else the process has cached of texts.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from inspect import signature
from typing import Any, Protocol
from weakref import WeakSet

from markupsafe import Markup

MAX_FRAGMENTS = 10_000  # of about 1 KB each


class Macro(Protocol):
    """A macro of a template."""

    name: str
    __call__: Callable[..., Markup]


class FragmentCache:
    """Rendered macros by their names and arguments; the least recently used ones are dropped.

    A macro must depend on nothing but its arguments, and its name must be unique among those that are kept.
    """

    def __init__(self, size: int = MAX_FRAGMENTS):
        self._size, self._lock = size, threading.Lock()
        self._parts: OrderedDict[Hashable, Markup] = OrderedDict()
        _caches.add(self)

    def render(self, macro: Macro, *arguments: Any, key: Hashable = None) -> Markup:
        """The HTML of a macro; key: what stands for arguments that have no hash."""
        key = (macro.name, arguments if key is None else key)
        with self._lock:
            if (found := self._parts.get(key)) is not None:
                self._parts.move_to_end(key)
                return found
        found = macro(*arguments)
        with self._lock:
            self._parts[key] = found
            if len(self._parts) > self._size:
                self._parts.popitem(last=False)
        return found

    def clear(self) -> None:
        """Drops all fragments."""
        with self._lock:
            self._parts.clear()


_caches: WeakSet[FragmentCache] = WeakSet()  # of this process


def forget_texts() -> None:
    """Clears what this process keeps of notes: all fragments, and the cached results of functions of a text."""
    for cache in list(_caches):
        cache.clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("nosology."):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and {"text", "made_of"} & signature(value).parameters.keys():
                    value.cache_clear()
