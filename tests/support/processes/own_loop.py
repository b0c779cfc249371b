"""Coroutines of a test, run in a thread of their own: the browser's library keeps a loop running in the main one."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def finish(story: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end and returns its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, story).result()
