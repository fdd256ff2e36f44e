"""A scenario: a quorum of three servers, of which one at a time is killed or stopped."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from private_memcached import PrivateMemcached

from . import PATIENCE_S
from .crew import Crew
from .scenario import FLAGS, GUARD_S, Scenario
from .show import Progress
from .verdict import Expected, Fault

# For how long servers are killed, and stopped by SIGSTOP.
KILLS_S = (0.4, 1.0)
STOPS_S = (0.6, 1.5, 1.0)
# The next fault comes when all locks have three votes again. A lock that was acquired while a
# server gave none is held for this long at most.
LONGEST_HOLD_S = 1.6
# A server that was restarted votes again when it is older than the guard. It tells its age in whole
# seconds, of which three are deducted.
WHOLE_AFTER_A_KILL_S = 1.003 * GUARD_S + 2.1 + LONGEST_HOLD_S
# A server that did not answer is left out for a second.
LEFT_OUT_S = 1.0
WHOLE_AFTER_A_STOP_S = LEFT_OUT_S + LONGEST_HOLD_S
# How long the two others may need to grant a free lock. A waiter whose queue was on the server
# that failed looks again after 5 s at the latest, and requests wait up to a second for a server
# that does not answer. A worker in the shell that has ended while a server was stopped may have
# left a vote there, for a lease and 3 s at most.
LATEST_S = 10.0


@dataclass(frozen=True)
class Planned:
    """What is to be done to a server."""

    what: str
    server: PrivateMemcached
    duration_s: float
    begin: Callable[[], None]
    end: Callable[[], None]
    # How long afterwards all is as before.
    whole_after_s: float
    said: str

    @classmethod
    def restart(cls, server: PrivateMemcached, down_s: float) -> Planned:
        """A server that is killed, and abstains for a guard when it is back."""
        said = "Port {port} was killed; it is back {seconds:.1f} s later, and abstains for a guard."
        begin, end = server.close, server.restart
        return cls("restart", server, down_s, begin, end, WHOLE_AFTER_A_KILL_S, said)

    @classmethod
    def stop(cls, server: PrivateMemcached, stop_s: float) -> Planned:
        """A server that hangs."""
        said = "Port {port} was stopped; it answers after {seconds:.1f} s."
        begin, end = server.stop, server.go_on
        return cls("stop", server, stop_s, begin, end, WHOLE_AFTER_A_STOP_S, said)


class ThreeServers(Scenario):
    """The servers, and what happened to them."""

    title = "a quorum of three memcacheds"

    def __init__(self) -> None:
        """Start the servers."""
        self.servers: list[PrivateMemcached] = []
        self.faults: list[Fault] = []
        # When all is as before the last fault.
        self._whole_at = 0.0
        try:
            for _ in range(3):
                self.servers.append(PrivateMemcached(FLAGS))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """End the servers."""
        for server in self.servers:
            server.close()

    def again(self) -> ThreeServers:
        """Return the same scenario with new servers."""
        return ThreeServers()

    @property
    def url(self) -> str:
        """What the workers connect to."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        outage = f"outage={PATIENCE_S:.0f}s"
        return f"memcached://{hosts}?quorum=majority&guard={GUARD_S}s&prefix=failover:&{outage}"

    def prepare(self, crew: Crew, progress: Progress) -> None:
        """Wait until the servers grant locks."""
        progress.say(f"Three memcacheds were started: {self.url}")
        crew.wait_for_grants()
        progress.say("Two of them are older than the guard: locks are granted.")

    def disturb(self, crew: Crew, progress: Progress) -> None:
        """Kill and stop servers in a random order, one at a time, while a worker holds `job`."""
        random.shuffle(self.servers)
        faults = [
            *map(Planned.restart, self.servers, KILLS_S),
            *map(Planned.stop, self.servers, STOPS_S),
        ]
        random.shuffle(faults)
        for planned in faults:
            crew.sleep(max(0.0, self._whole_at - time.monotonic()))
            fault = self._do(planned, crew)
            self._whole_at = time.monotonic() + planned.whole_after_s
            progress.say(planned.said.format(port=planned.server.port, seconds=fault.took_s))
            crew.wait_for_a_turn(crew.turns())

    def expected(self) -> Expected:
        """Return what the workers may expect of two of three servers."""
        return Expected(
            faults=self.faults,
            latest_s=LATEST_S,
            latest_is="two servers always answer",
            left_out_s=LEFT_OUT_S,
        )

    def _do(self, planned: Planned, crew: Crew) -> Fault:
        crew.wait_for("a worker held `job`", lambda: crew.running(_now()) is not None)
        before = _now()
        planned.begin()
        began = _now()
        try:
            crew.sleep(planned.duration_s)
        finally:
            planned.end()
        planned.server.stats()
        fault = Fault(planned.what, before, began, _now(), planned.duration_s)
        self.faults.append(fault)
        return fault


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
