"""A TCP relay that counts round trips."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

# Data that follows within this time belongs to the same burst. A burst is delayed until it is
# complete: otherwise the server would answer half of a batch, and the other half would count again.
QUIET_S = 0.002


class Relay:
    """Carries bytes between clients and a server; a round trip is a burst that follows an answer.

    It listens on `port` from the start until `close`.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._lock = threading.Lock()
        self.round_trips = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more clients."""
        # close() alone would leave accept() waiting forever.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the listener was closed: done
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._server_port))
        with client, server, selectors.DefaultSelector() as ready:
            for source, sink in ((client, server), (server, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(source, selectors.EVENT_READ, sink)
            last_talker = server
            while True:
                for key, _ in ready.select():
                    source, sink = key.fileobj, key.data
                    burst = _read_burst(source)
                    if source is client and last_talker is not client and burst:
                        with self._lock:
                            self.round_trips += 1
                    last_talker = source
                    try:
                        sink.sendall(burst)
                    except OSError:
                        return
                    if not burst:  # one side is done: end both
                        return


def _read_burst(source: socket.socket) -> bytes:
    burst = b""
    source.settimeout(QUIET_S)
    with contextlib.suppress(OSError):  # a timeout ends the burst, and so does a reset
        while True:
            more = source.recv(1 << 20)
            if not more:
                break
            burst += more
    source.settimeout(None)
    return burst
