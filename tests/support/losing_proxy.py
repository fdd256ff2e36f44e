"""A proxy before a memcached that loses each lock right before its release."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable

RELEASE = re.compile(rb"^md (\S+)", re.MULTILINE)


class LosingProxy:
    """Passes everything on until the `with` statement ends, and deletes what is to be released."""

    def __init__(self, port: int) -> None:
        """`port` is where the memcached is, on loopback."""
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> LosingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake a thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for pump in ((client, server, self._lose), (server, client, lambda _: None)):
                threading.Thread(target=_pass_on, args=pump, daemon=True).start()

    def _lose(self, request: bytes) -> None:
        for key in RELEASE.findall(request):
            with socket.create_connection(self._server) as other:
                other.sendall(b"md " + key + b"\r\n")
                other.recv(100)


def _pass_on(source: socket.socket, target: socket.socket, before: Callable[[bytes], None]) -> None:
    try:
        while data := source.recv(65536):
            before(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
