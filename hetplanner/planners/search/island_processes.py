"""Islands in processes of their own: started afresh (spawn), without torch, ended whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from hetplanner.errors import RunError
from hetplanner.planners.interface import EVENT_INTERVAL_S, Progress
from hetplanner.planners.search.islands import Elites, Island, NewsBoard, PopulationState, Task
from hetplanner.planners.search.population import Evolution

POLL_S = 0.05
# A process that was asked to stop ends its chunk first.
JOIN_S = 5.0


class ProcessCrew:
    """Islands dealt out to processes; island i runs in process i modulo their number.

    Args:
        task: what they search.
        progress: of the whole search; cancelling it stops all processes.
        evolutions: populations like those of every island.
    """

    def __init__(self, task: Task, progress: Progress, evolutions: Sequence[Evolution]) -> None:
        self._board, self._task = NewsBoard(progress, evolutions), task
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        count = min(task.settings.processes, task.settings.islands)
        self._islands = [list(range(k, task.settings.islands, count)) for k in range(count)]
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._is_over = False
        for numbers in self._islands:
            here, there = context.Pipe()
            process = context.Process(target=serve_islands, args=(there, numbers, self._stop, os.getpid()), daemon=True)
            self._pipes.append(here)
            self._processes.append((process, there))

    def __enter__(self) -> Self:
        try:
            for process, there in self._processes:
                process.start()
                there.close()
            # Not as an argument: starting a process that ends before it has read a large one would wait for ever.
            for pipe in self._pipes:
                self._send(pipe, self._task)
            self._gather("ready")
            for pipe in self._pipes:
                self._send(pipe, ("start",))
        except BaseException:
            self.__exit__()
            raise
        self._board.progress.start_budget()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for pipe in self._pipes:
            pipe.close()
        for process, _ in self._processes:
            if process.pid is None:
                continue
            process.join(JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()

    def run(self, target: int, incoming: dict[int, Elites]) -> dict[int, Elites] | None:
        """See :class:`hetplanner.planners.search.islands.Crew`."""
        for pipe, numbers in zip(self._pipes, self._islands, strict=True):
            self._send(pipe, ("run", target, {n: incoming[n] for n in numbers if n in incoming}))
        replies = self._gather("reached")
        if all(over for over, _ in replies):
            return None
        return {number: elites for _, found in replies for number, elites in found.items()}

    def states(self) -> list[list[PopulationState]]:
        """See :class:`hetplanner.planners.search.islands.Crew`."""
        for pipe in self._pipes:
            self._send(pipe, ("states",))
        found: dict[int, list[PopulationState]] = {}
        for states in self._gather("states"):
            found |= states
        return [found[number] for number in sorted(found)]

    @staticmethod
    def _send(pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise _lost() from None

    def _gather(self, kind: str) -> list[Any]:
        """One reply of this kind from every process, in order; news on the way are posted."""
        replies: dict[int, Any] = {}
        while len(replies) < len(self._pipes):
            if self._board.progress.is_cancelled():
                self._stop.set()
            left = {self._pipes[k]: k for k in range(len(self._pipes)) if k not in replies}
            for pipe in wait(list(left), timeout=POLL_S):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    raise _lost() from None
                if message[0] == "news":
                    self._board.post(message[1], message[2])
                elif message[0] == "failed":
                    raise message[1]
                elif message[0] == kind:
                    replies[left[pipe]] = message[1]
        return [replies[k] for k in range(len(self._pipes))]


def _lost() -> RunError:
    return RunError(
        "a process of the search ended unexpectedly (out of memory, or a script that starts searches"
        " without `if __name__ == '__main__'`); use one process, or fewer"
    )


def serve_islands(pipe: Connection, numbers: list[int], stop: Any, parent: int) -> None:
    """Entry point of a process: gets its task, runs islands as asked until the pipe closes or the parent is gone."""
    # Ctrl-C reaches the whole terminal; the parent says what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        task: Task = pipe.recv()
        islands = {n: Island(task, n, lambda: stop.is_set() or os.getppid() != parent) for n in numbers}
        pipe.send(("ready", None))
        while True:
            message = pipe.recv()
            if message[0] == "start":
                for island in islands.values():
                    island.start()
            elif message[0] == "run":
                _run(pipe, islands, *message[1:])
            else:
                pipe.send(("states", {n: island.state() for n, island in islands.items()}))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        pipe.send(("failed", error))


def _run(pipe: Connection, islands: dict[int, Island], target: int, incoming: dict[int, Elites]) -> None:
    for number, elites in incoming.items():
        islands[number].receive(elites)
    going = list(islands.items())
    told_s = 0.0
    while going:
        going = [(number, island) for number, island in going if island.step(target)]
        for number, island in going:
            if island.progress.seconds - told_s >= EVENT_INTERVAL_S:
                pipe.send(("news", number, island.news))
        if going and going[0][1].progress.seconds - told_s >= EVENT_INTERVAL_S:
            told_s = going[0][1].progress.seconds
    for number, island in islands.items():
        pipe.send(("news", number, island.news))
    over = all(island.is_over for island in islands.values())
    pipe.send(("reached", (over, {number: island.elites() for number, island in islands.items()})))
