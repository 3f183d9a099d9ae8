"""A unix socket between a client and its engine that cuts, delays and splits what passes."""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path


class Proxy:
    """Passes connections on to ``target``. ``piece``: bytes a write; ``delay``: at most so many seconds a read;
    ``cuts``: for each connection in turn the (to the engine, to the client) bytes after which it is cut, None for never.
    """

    def __init__(
        self,
        path: Path,
        target: str,
        *,
        piece: int = 1 << 16,
        delay: float = 0.0,
        cuts: tuple[tuple[int | None, int | None], ...] = (),
        seed: int = 0,
    ) -> None:
        self.path = str(path)
        self.passed = [0, 0]
        """Bytes to the engine, bytes to the client, over all connections."""
        self.connections = 0
        self._target, self._piece, self._delay = target, piece, delay
        self._cuts = list(cuts)
        self._dice = random.Random(seed)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._start(self._accept)

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            self._open += [client, engine]
            try:
                engine.connect(self._target)
            except OSError:
                client.close()
                continue
            cuts = self._cuts[self.connections] if self.connections < len(self._cuts) else (None, None)
            self.connections += 1
            self._start(self._pump, 0, client, engine, cuts[0])
            self._start(self._pump, 1, engine, client, cuts[1])

    def _pump(self, way: int, source: socket.socket, sink: socket.socket, cut: int | None) -> None:
        sent = 0
        try:
            while data := source.recv(1 << 16):
                if self._delay:
                    time.sleep(self._dice.uniform(0, self._delay))
                for at in range(0, len(data), self._piece):
                    piece = data[at : at + self._piece]
                    if cut is not None:
                        piece = piece[: cut - sent]
                    sink.sendall(piece)
                    sent += len(piece)
                    self.passed[way] += len(piece)
                    if sent == cut:
                        return
        except OSError:
            pass  # the other pump, or ``close``, has cut it
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self) -> None:
        """Cut everything and wait for the threads."""
        for end in (self._listener, *self._open):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(10)
        for end in (self._listener, *self._open):
            end.close()
