"""A scenario: one server with a guard, which is killed and restarted under the locks' holders."""

from __future__ import annotations

import time

from private_memcached import PrivateMemcached

from . import PATIENCE_S, FailoverError
from .crew import Crew
from .scenario import FLAGS, GUARD_S, Scenario
from .show import Progress
from .verdict import Expected, Fault

# For how long the server is down, each time. A lock whose lease is just before its renewal must
# outlive it: of 3 s, 2 are left then.
DOWNTIMES_S = (0.0, 0.4, 1.0)
# A hold that is to outlive a restart is longer by this.
MARGIN_S = 0.1
# A restart that finds no hold, because the machine was slow, is repeated so often.
TRIES = 3
# A server tells its age in whole seconds, and a waiter looks once a second.
AFTER_THE_GUARD_S = 4.0


class OneServer(Scenario):
    """The server, and what happened to it."""

    title = "one memcached with a guard"

    def __init__(self, with_guard: bool) -> None:
        """Start the server."""
        self.with_guard = with_guard
        self.server = PrivateMemcached(FLAGS)
        self.restarts: list[Fault] = []

    def close(self) -> None:
        """End the server."""
        self.server.close()

    def again(self) -> OneServer:
        """Return the same scenario with a new server."""
        return OneServer(self.with_guard)

    @property
    def url(self) -> str:
        """What the workers connect to."""
        guard = f"guard={GUARD_S}s&" if self.with_guard else ""
        # A slow machine may take longer for a restart than waiters usually put up with.
        outage = f"outage={PATIENCE_S:.0f}s"
        return f"{self.server.url}?{guard}evictions=refuse&prefix=failover:&{outage}"

    def prepare(self, crew: Crew, progress: Progress) -> None:
        """Wait until the server grants locks."""
        progress.say(f"A memcached was started: {self.url}")
        if self.with_guard:
            progress.say(f"It is young, and grants no lock before it is older than {GUARD_S} s.")
        crew.wait_for_grants()
        progress.say("It grants locks.")

    def disturb(self, crew: Crew, progress: Progress) -> None:
        """Kill and restart the server while a worker holds `job`, each time another one."""
        left = {worker.name for worker in crew.workers}
        for downtime_s in DOWNTIMES_S:
            for _ in range(TRIES):
                holder = self._restart(crew, downtime_s, left, progress)
                if holder:
                    left.discard(holder)
                    break
            else:
                raise FailoverError(f"No worker held `job` at {TRIES} restarts.")

    def expected(self) -> Expected:
        """Return what the workers may expect of this server."""
        down_s = max(restart.took_s for restart in self.restarts)
        return Expected(
            faults=self.restarts,
            latest_s=down_s + GUARD_S + AFTER_THE_GUARD_S,
            latest_is=f"time without a server, {GUARD_S} s, {AFTER_THE_GUARD_S:.0f} s",
            left_out_s=0.0,
        )

    def _restart(
        self, crew: Crew, downtime_s: float, among: set[str], progress: Progress
    ) -> str | None:
        """Return the worker that held `job` at the kill; None if there was none."""
        shortest = (downtime_s + MARGIN_S) * 1e9

        def is_held() -> bool:
            now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            hold = crew.running(now)
            return hold is not None and hold.worker in among and hold.left(now) >= shortest

        crew.wait_for(f"one of {', '.join(sorted(among))} held `job`", is_held)
        killing = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.server.close()
        killed = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        crew.sleep(downtime_s)
        self.server.restart()
        back = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        began = time.monotonic()
        self.restarts.append(Fault("restart", killing, killed, back, downtime_s))
        journals = crew.journals()
        jobs = (hold for it in journals for hold in it.jobs)
        holder = next((hold.worker for hold in jobs if hold.ran(killing)), None)
        down_s = (back - killed) / 1e9
        progress.say(f"Killed while {holder or 'nobody'} held `job`; back {down_s:.1f} s later.")
        turns = sum(len(it.jobs) for it in journals)
        crew.wait_for_grants()
        crew.wait_for_a_turn(turns)
        progress.say(
            f"Holders put back what they held; others got locks {time.monotonic() - began:.1f} s "
            "after the restart."
            if self.with_guard
            else "Without a guard, others get locks at once, also those that are still held."
        )
        return holder
