//! The threads that carry out calls: the real ones, with jobs of a few lines.
//!
//! No sleep in this model ends by a timeout, but the clock jumps ahead with each look. So a job, or a
//! caller, that is not woken sleeps forever; and a thread that has nothing to do ends at the next
//! rousing, perhaps while it is given something.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};

use super::explore;
use super::listener::FakeListener;
use crate::clock::{Clock, Moment};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Keyspace;
use crate::notify::{Listener, Notifier, Reach, WakeAddress, WakeMessage};
use crate::store::Route;
use crate::store::memory::Memory;
use crate::wait_id::WaitId;
use crate::worker::{Completer, Job, Next, Pending, Turning, any, call, pending, rouse_all};

/// Each look at it is so much later.
const STEP: Duration = Duration::from_millis(600);
const FAR: Duration = Duration::from_secs(1_000_000);

#[derive(Debug, Default)]
struct Jumping {
    steps: AtomicU64,
}

impl Clock for Jumping {
    fn now(&self) -> Moment {
        let steps = 1 + self.steps.fetch_add(1, Ordering::SeqCst);
        Moment::from_boot(STEP * u32::try_from(steps).unwrap())
    }

    fn unix_seconds(&self) -> u64 {
        0
    }

    fn sleep(&self, _duration: Duration) {}

    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        bytes.fill(7);
        Ok(())
    }
}

#[derive(Debug)]
struct Listeners;

impl Notifier for Listeners {
    fn take(&self, _near: Option<IpAddr>) -> Arc<dyn Listener> {
        Arc::new(FakeListener::new(0))
    }

    fn send(&self, _address: WakeAddress, _id: WaitId, _message: WakeMessage) -> bool {
        true
    }

    fn reach(&self) -> Reach {
        Reach::Proven
    }

    fn missed(&self) {}

    fn may_have_missed(&self) {}

    fn interrupt_all(&self) {}
}

/// What a call grants: it must not get lost.
struct Granted {
    there_are: Arc<AtomicUsize>,
}

impl Granted {
    fn new(there_are: &Arc<AtomicUsize>) -> Granted {
        there_are.fetch_add(1, Ordering::SeqCst);
        Granted { there_are: Arc::clone(there_are) }
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.there_are.fetch_sub(1, Ordering::SeqCst);
    }
}

struct World {
    context: Context,
    route: Route,
    /// How many grants exist.
    grants: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Arc<World> {
        let clock: Arc<dyn Clock> = Arc::new(Jumping::default());
        let store = Arc::new(Memory::new(Arc::clone(&clock)));
        let outage = Duration::from_secs(5);
        let keys = Keyspace::default();
        let route = Route::of(&keys.lock(b"model"));
        let context = Context::new(store, clock, keys, outage, Arc::new(Listeners));
        Arc::new(World { context, route, grants: Arc::default() })
    }

    /// Lets the threads end, as they have nothing to do.
    fn end(&self) {
        while rouse_all(&self.context) {
            thread::yield_now();
        }
        assert!(!any(&self.context), "a call is counted that has ended");
        assert_eq!(self.grants.load(Ordering::SeqCst), 0, "a grant got lost");
    }

    /// A call that grants something at its first turn.
    fn begin(&self) -> Pending<Granted> {
        let grants = Arc::clone(&self.grants);
        call(&self.context, self.route, move |_| Ok(Granted::new(&grants)))
    }
}

/// What a caller sleeps on.
#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.has_rung.lock().unwrap() = true;
        self.rings.notify_all();
    }
}

/// Sleeps until the call has ended.
fn wait<T: Send>(mut call: Pending<T>) -> Result<T> {
    let bell = Arc::new(Bell::default());
    call.notify(Waker::from(Arc::clone(&bell)));
    let mut has_rung = bell.has_rung.lock().unwrap();
    while !*has_rung {
        has_rung = bell.rings.wait(has_rung).unwrap();
    }
    drop(has_rung);
    call.take().expect("the waker was called, but nothing has ended")
}

/// A wait that ends when the gate is open, or when it is cancelled.
struct AtGate {
    /// `None`: there is none, and nothing wakes the wait but its cancellation.
    gate: Option<Arc<Gate>>,
    grants: Arc<AtomicUsize>,
    completer: Completer<Granted>,
}

#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    /// Those that wait, to be interrupted.
    waiters: Mutex<Vec<Arc<dyn Listener>>>,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        let waiters = std::mem::take(&mut *self.waiters.lock().unwrap());
        waiters.iter().for_each(|waiter| waiter.interrupt());
    }
}

impl Job for AtGate {
    fn turn(&mut self, at: &Turning<'_>) -> Next {
        if self.completer.is_cancelled() {
            self.completer.complete(Err(Error::new(ErrorKind::Interrupted, "Cancelled.")));
            return Next::Done;
        }
        if let Some(gate) = &self.gate {
            gate.waiters.lock().unwrap().push(at.listener());
            if *gate.is_open.lock().unwrap() {
                // What comes back is dropped: the call was cancelled meanwhile.
                drop(self.completer.complete(Ok(Granted::new(&self.grants))));
                return Next::Done;
            }
        }
        Next::Sleep(at.context().clock().now() + FAR)
    }

    fn may_wait(&self) -> bool {
        true
    }
}

impl World {
    fn begin_at(&self, gate: Option<&Arc<Gate>>) -> Pending<Granted> {
        let (gate, grants) = (gate.cloned(), Arc::clone(&self.grants));
        pending(&self.context, self.route, |completer| Box::new(AtGate { gate, grants, completer }))
    }
}

/// So many threads, each of which does this.
fn threads(world: &Arc<World>, count: usize, body: fn(&World)) -> Vec<JoinHandle<()>> {
    let start = |_| {
        let world = Arc::clone(world);
        thread::spawn(move || body(&world))
    };
    (0..count).map(start).collect()
}

#[test]
fn each_call_ends_and_wakes_its_caller() {
    explore("worker: calls", || {
        let world = World::new();
        let callers = threads(&world, 3, |world| drop(wait(world.begin()).unwrap()));
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        world.end();
    });
}

#[test]
fn a_call_that_begins_while_the_thread_ends_is_carried_out() {
    explore("worker: ending", || {
        let world = World::new();
        drop(wait(world.begin()).unwrap());
        let ending = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                for _ in 0..3 {
                    rouse_all(&world.context);
                    thread::yield_now();
                }
            }
        });
        drop(wait(world.begin()).unwrap());
        ending.join().unwrap();
        drop(wait(world.begin()).unwrap());
        world.end();
    });
}

#[test]
fn what_is_granted_to_a_call_that_is_dropped_is_dropped_too() {
    explore("worker: dropped", || {
        let world = World::new();
        let dropping = threads(&world, 2, |world| drop(world.begin()));
        drop(wait(world.begin()).unwrap());
        dropping.into_iter().for_each(|caller| caller.join().unwrap());
        world.end();
    });
}

#[test]
fn a_wait_ends_by_its_grant_or_by_its_cancellation() {
    explore("worker: waits", || {
        let world = World::new();
        let gate = Arc::new(Gate::default());
        let waits = [Some(&gate), Some(&gate), Some(&gate)].map(|gate| world.begin_at(gate));
        let opening = thread::spawn({
            let gate = Arc::clone(&gate);
            move || gate.open()
        });
        let [patient, hasty, dropped] = waits;
        let leaving = thread::spawn(move || {
            drop(dropped);
            hasty.cancel();
            // It may have been granted before.
            drop(wait(hasty));
        });
        drop(wait(patient).unwrap());
        opening.join().unwrap();
        leaving.join().unwrap();
        world.end();
    });
}

#[test]
fn a_wait_that_nothing_grants_ends_when_it_is_cancelled() {
    explore("worker: cancelled", || {
        let world = World::new();
        let (cancelled, dropped) = (world.begin_at(None), world.begin_at(None));
        let leaving = thread::spawn(move || drop(dropped));
        cancelled.cancel();
        assert_eq!(wait(cancelled).err().unwrap().kind(), ErrorKind::Interrupted);
        leaving.join().unwrap();
        world.end();
    });
}
