//! The local waiters alone: waiters that act as `wait/driver.rs` does, a server of a few lines, and
//! listeners without a clock.
//!
//! No sleep in this model has a timeout. A waiter that sleeps although it was granted the target,
//! was woken, or has become the first of the local waiters, therefore sleeps forever, and shuttle
//! reports a deadlock.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};

use super::explore;
use crate::clock::Moment;
use crate::name::{Key, Keyspace};
use crate::notify::{Listener, Reach, WakeAddress, WakeMessage};
use crate::wait::local::WakeSummary;
use crate::wait::local::{LocalWaiters, QueueTicket, TakenOver, Unparked};
use crate::wait::policy::{Event, Known, Policy, QueuePosition, TargetState};
use crate::wait_id::WaitId;

const NOW: Moment = Moment::from_boot(Duration::from_secs(1));

/// A listener that sleeps until it is interrupted or woken.
struct FakeListener {
    number: u16,
    heard: Mutex<Heard>,
    wake: Condvar,
}

#[derive(Default)]
struct Heard {
    interrupt: bool,
    wakes: Vec<WaitId>,
}

impl FakeListener {
    /// A wake-up from outside the process, as by a datagram.
    fn wake(&self, id: WaitId) {
        self.heard.lock().unwrap().wakes.push(id);
        self.wake.notify_one();
    }
}

impl Listener for FakeListener {
    fn address(&self, _near: Option<IpAddr>, _test: WaitId) -> Option<WakeAddress> {
        // No port is 0.
        WakeAddress::udp(([127, 0, 0, 1], 1 + self.number).into())
    }

    fn sleep(&self, _duration: Duration) {
        let mut heard = self.heard.lock().unwrap();
        while heard.wakes.is_empty() && !std::mem::take(&mut heard.interrupt) {
            heard = self.wake.wait(heard).unwrap();
        }
    }

    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage> {
        let woken = self.heard.lock().unwrap().wakes.drain(..).any(|id| live.contains(&id));
        woken.then(WakeMessage::default)
    }

    fn interrupt(&self) {
        self.heard.lock().unwrap().interrupt = true;
        self.wake.notify_one();
    }
}

/// The server's state: the holder, by its token, and the waiters in the queue.
struct Server {
    last: u64,
    holder: Option<u64>,
    queue: Vec<Entry>,
}

/// A waiter in the queue, and where it can be woken.
#[derive(Clone, Copy)]
struct Entry {
    id: WaitId,
    listener: Option<WakeAddress>,
}

impl Server {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

struct World {
    local: LocalWaiters<u64, Held>,
    key: Key,
    server: Mutex<Server>,
    /// All listeners, by their numbers.
    notifier: Mutex<Vec<Arc<FakeListener>>>,
    /// The waiters' numbers, in the order in which they acquired the target.
    got: Mutex<Vec<u64>>,
    /// Whether the server refuses some hand-offs.
    refuses: bool,
}

/// The target is held, by this token, after waiting in the queue under these ids.
struct Held {
    token: u64,
    entry_ids: Vec<WaitId>,
}

impl World {
    /// A world with a holder that does not know of waiters yet.
    fn new(refuses: bool) -> (Arc<World>, Held) {
        let world = World {
            local: LocalWaiters::default(),
            key: Keyspace::default().lock(b"model"),
            server: Mutex::new(Server { last: 1, holder: Some(1), queue: Vec::new() }),
            notifier: Mutex::default(),
            got: Mutex::default(),
            refuses,
        };
        (Arc::new(world), Held { token: 1, entry_ids: Vec::new() })
    }

    fn new_listener(&self) -> Arc<FakeListener> {
        let mut notifier = self.notifier.lock().unwrap();
        let number = notifier.len() as u16;
        notifier.push(Arc::new(FakeListener {
            number,
            heard: Mutex::default(),
            wake: Condvar::new(),
        }));
        Arc::clone(&notifier[usize::from(number)])
    }

    /// Waits for the target, unless the wait is cancelled, which leaves nothing behind.
    fn wait(&self, called_off: &AtomicBool) -> Option<Held> {
        let (local, key) = (&self.local, &self.key);
        let mut listener: Arc<dyn Listener> = self.new_listener();
        let request = self.server.lock().unwrap().next();
        let number = local.enter(key, request, false, &listener);
        let (mut ids, mut queued, mut woken, mut first) = (Vec::new(), false, false, false);
        loop {
            if !first {
                if let Some(TakenOver { ticket, listener: left }) = local.take_over(key, number) {
                    (first, listener) = (true, left.unwrap_or(listener));
                    if let Some(ticket) = ticket {
                        (ids, queued) = (ticket.ids, true);
                    }
                }
            }
            let off = called_off.load(Ordering::SeqCst);
            let asleep = !off && (!first || queued && !woken);
            if !asleep && local.start_work(key, number) {
                if off {
                    self.leave(number, ids, queued && !woken);
                    return None;
                }
                let mut server = self.server.lock().unwrap();
                if woken && server.holder.is_none() {
                    let token = server.next();
                    server.holder = Some(token);
                    drop(server);
                    self.got.lock().unwrap().push(number);
                    let left = local.leave(key, number, None, None);
                    assert!(left.is_none_or(|left| left.ids == ids), "a strange place is left");
                    return Some(Held { token, entry_ids: ids });
                }
                let id = WaitId(server.next());
                let entry = Entry { id, listener: listener.address(None, id) };
                let end = if woken { 0 } else { server.queue.len() };
                server.queue.insert(end, entry);
                (queued, woken) = (true, server.holder.is_none());
                ids.push(id);
                continue;
            }
            if local.park(key, number, &ids) {
                listener.sleep(Duration::MAX);
            }
            let mut heard = listener.heard(&ids).is_some();
            loop {
                match local.unpark(key, number) {
                    Unparked::Granted(mut held) => {
                        assert_eq!(
                            self.server.lock().unwrap().holder,
                            Some(held.token),
                            "given twice"
                        );
                        self.got.lock().unwrap().push(number);
                        let position = queued && !woken;
                        let ticket = position.then(|| QueueTicket {
                            position: a_position(),
                            ids: ids.clone(),
                            proven: true,
                        });
                        let left = local.leave(key, number, ticket, None);
                        held.entry_ids.extend(left.into_iter().flat_map(|left| left.ids));
                        if !position {
                            held.entry_ids.extend(ids);
                        }
                        return Some(held);
                    }
                    Unparked::Up { woken } => {
                        heard |= woken.is_some();
                        break;
                    }
                    Unparked::HandingOff => listener.sleep(Duration::MAX),
                }
                heard |= listener.heard(&ids).is_some();
            }
            (woken, queued) = (woken || heard, queued && !heard);
        }
    }

    /// Leaves without the target: the place passes to the next waiter, or the entry is removed.
    fn leave(&self, number: u64, mut ids: Vec<WaitId>, position: bool) {
        let ticket = position.then(|| QueueTicket {
            position: a_position(),
            ids: ids.clone(),
            proven: true,
        });
        let had_stand = ticket.is_some();
        match self.local.leave(&self.key, number, ticket, None) {
            None if had_stand => return,
            left => ids.extend(left.into_iter().flat_map(|left| left.ids)),
        }
        let mut server = self.server.lock().unwrap();
        server.queue.retain(|entry| !ids.contains(&entry.id));
        let free = server.holder.is_none();
        let queue = server.queue.clone();
        drop(server);
        if free {
            // This waiter may have been woken in between.
            self.wake_first(queue, &ids);
        }
    }

    fn let_go(&self, mut held: Held) {
        if let Some(mut serving) = self.local.begin_hand_off(&self.key) {
            let token = serving.request;
            let mut server = self.server.lock().unwrap();
            assert_eq!(server.holder, Some(held.token), "somebody else has it");
            serving.request = server.next();
            if !self.refuses || thread_rng().gen_bool(0.5) {
                server.holder = Some(token);
                drop(server);
                return serving
                    .grant(Held { token, entry_ids: std::mem::take(&mut held.entry_ids) });
            }
        }
        let mut server = self.server.lock().unwrap();
        assert_eq!(server.holder.take(), Some(held.token), "somebody else has it");
        let queue = server.queue.clone();
        drop(server);
        let others = self.wake_first(queue, &held.entry_ids);
        self.local.released(&self.key, WakeSummary { others, ..WakeSummary::default() }, NOW);
    }

    /// As `Queue::wake_next`: wakes the first waiter whose entry is not one of `ours`, and removes
    /// its entry and `ours`. The wake-up comes first, unless one of `ours` is still in the queue.
    fn wake_first(&self, mut queue: Vec<Entry>, ours: &[WaitId]) -> bool {
        let write_first = queue.iter().any(|entry| ours.contains(&entry.id));
        let mut next = None;
        for write in [write_first, !write_first] {
            if write {
                let mut server = self.server.lock().unwrap();
                if write_first {
                    queue.clone_from(&server.queue);
                    next = queue.iter().find(|entry| !ours.contains(&entry.id)).copied();
                }
                let off = next.map(|next| next.id);
                server.queue.retain(|entry| !ours.contains(&entry.id) && Some(entry.id) != off);
                continue;
            }
            if !write_first {
                next = queue.iter().find(|entry| !ours.contains(&entry.id)).copied();
            }
            // A waiter that does not sleep yet receives the wake-up when it does. A waiter that has
            // just left inspects the lock afterwards, and wakes the next one itself.
            if let Some(Entry { id, listener: Some(listener) }) = next
                && !self.local.wake(&self.key, id, std::time::Duration::ZERO)
            {
                let listener = Arc::clone(
                    &self.notifier.lock().unwrap()[usize::from(listener.socket().port() - 1)],
                );
                listener.wake(id);
            }
        }
        next.is_some()
    }

    fn cancel(&self, called_off: &AtomicBool) {
        called_off.store(true, Ordering::SeqCst);
        let notifier = self.notifier.lock().unwrap().clone();
        notifier.iter().for_each(|listener| listener.interrupt());
    }

    /// There are no waiters and no holder, and the waiters acquired the target in their order.
    fn is_over(&self, waiters: usize) {
        assert_eq!(self.got.lock().unwrap().len(), waiters, "who has got it");
        assert_eq!(self.server.lock().unwrap().holder, None);
        assert!(self.local.begin_hand_off(&self.key).is_none());
        let got = self.got.lock().unwrap();
        assert!(got.is_sorted(), "out of order: {got:?}");
    }
}

/// A waiter that releases the target once it has acquired it. Returns whether it did.
fn start(world: &Arc<World>, called_off: &Arc<AtomicBool>) -> JoinHandle<bool> {
    let (world, called_off) = (Arc::clone(world), Arc::clone(called_off));
    thread::spawn(move || {
        let held = world.wait(&called_off);
        held.map(|held| world.let_go(held)).is_some()
    })
}

/// Any place in the queue.
fn a_position() -> QueuePosition {
    let mut policy = Policy::new(NOW, None, Duration::ZERO, Known::default());
    let state = TargetState::Held { notifies: true, left: None };
    policy.on(Event::Joined { before: 0, state }, NOW, 0.5, Reach::Proven);
    policy.position().unwrap()
}

fn every_waiter_gets_it(refuses: bool) {
    let (world, held) = World::new(refuses);
    let never = Arc::new(AtomicBool::new(false));
    let waiters: Vec<_> = (0..3).map(|_| start(&world, &never)).collect();
    world.let_go(held);
    for waiter in waiters {
        assert!(waiter.join().unwrap());
    }
    world.is_over(3);
}

#[test]
fn each_waiter_is_given_it_once_and_in_turn() {
    explore("line: in turn", || every_waiter_gets_it(false));
}

#[test]
fn a_hand_over_that_is_refused_leaves_nobody_asleep() {
    explore("line: refused", || every_waiter_gets_it(true));
}

#[test]
fn who_leaves_passes_its_place_on() {
    explore("line: leaving", || {
        let (world, held) = World::new(true);
        let (never, off) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let waiters = [&off, &never, &off, &never].map(|called_off| start(&world, called_off));
        let canceller = thread::spawn({
            let world = Arc::clone(&world);
            move || world.cancel(&off)
        });
        world.let_go(held);
        canceller.join().unwrap();
        let got = waiters.map(|waiter| waiter.join().unwrap());
        assert!(got[1] && got[3], "who was not called off gets it");
        world.is_over(got.iter().filter(|&&got| got).count());
    });
}
