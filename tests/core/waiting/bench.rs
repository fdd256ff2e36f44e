//! What the tests of waiting stand on: a server, clients for which no time passes, and stores that
//! let something happen in the middle of a batch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::name::{Key, Keyspace};
use memlock_core::notify::WakeAddress;
use memlock_core::store::{self, Expiry, Guarantees, Op, Order, Reply, Returns, Route, Store};
use memlock_core::wait::entries::{self, Request};
use memlock_core::wait_id::WaitId;
use memlock_core::{Cancel, Client, Lock, Release, Wait, Waited};
use memlock_tests::doors::WaitingThread;
use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::intercepted_as;
use memlock_tests::launch;
use memlock_tests::server::Memcached;

use crate::bench::lost;

/// A waiter that is served only when a lease has ended is served too late.
pub(crate) const LEASE: Duration = Duration::from_secs(600);
/// For what must happen, however slow the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The fate of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// It never arrives.
    RequestLost,
    /// It is carried out, and its reply never arrives.
    ReplyLost,
}

/// A server, a store on it, and the keys of the lock and of its queue.
pub(crate) struct Bench {
    pub(crate) server: Memcached,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) lock: Key,
    pub(crate) queue: Key,
    /// The batches that clients with a hook are at.
    at_work: Arc<AtomicUsize>,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let server = Memcached::start();
        let lock = Keyspace::default().lock(b"m");
        let queue = lock.waiters();
        Bench { store: connect(&server), server, lock, queue, at_work: Arc::default() }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.server.url()).unwrap()
    }

    /// A client for which no time passes.
    pub(crate) fn frozen(&self) -> Client {
        Client::with_clock(&self.server.url(), Frozen::clock()).unwrap()
    }

    /// A client whose store lets something happen before each operation, and may lose it.
    pub(crate) fn hooked(
        &self,
        clock: Arc<dyn Clock>,
        hook: impl FnMut(&Op<'_>) -> Fate + Send + 'static,
    ) -> Client {
        self.ordered(Order::Sent, clock, hook)
    }

    /// The same, with a store that carries out requests in this order.
    pub(crate) fn ordered(
        &self,
        order: Order,
        clock: Arc<dyn Clock>,
        hook: impl FnMut(&Op<'_>) -> Fate + Send + 'static,
    ) -> Client {
        let hook = Mutex::new(hook);
        // One by one: the operations of a batch are not atomic together.
        let server = connect(&self.server);
        let guarantees = Guarantees { order, ..server.guarantees() };
        let at_work = Arc::clone(&self.at_work);
        let store = intercepted_as(guarantees, server, move |server, route, ops| {
            at_work.fetch_add(1, Ordering::SeqCst);
            let one = |op: &Op<'_>| {
                let fate = (hook.lock().unwrap())(op);
                if fate == Fate::RequestLost {
                    return Err(lost());
                }
                let reply = server.run(route, &[*op])?.remove(0);
                if fate == Fate::ReplyLost { Err(lost()) } else { Ok(reply) }
            };
            let replies = ops.iter().map(one).collect();
            at_work.fetch_sub(1, Ordering::SeqCst);
            replies
        });
        Client::with_store(store, clock)
    }

    pub(crate) fn entries(&self) -> Vec<u8> {
        match &self.store.run(Route::of(&self.lock), &[Op::get(&self.queue)]).unwrap()[..] {
            [Reply::Value(item)] => item.value.clone(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn waiters(&self) -> Vec<WaitId> {
        entries::waiters(&self.entries()).map(|entry| entry.id).collect()
    }

    #[track_caller]
    pub(crate) fn until_waiting(&self, count: usize) {
        until(|| self.waiters().len() == count);
    }

    /// Until there are so many waiters, and none with a hook is still joining.
    #[track_caller]
    pub(crate) fn until_joined(&self, count: usize) {
        self.until_waiting(count);
        until(|| self.at_work.load(Ordering::SeqCst) == 0);
    }

    /// Until there are so many waiters, and the record tells the holder of one.
    #[track_caller]
    pub(crate) fn until_seen(&self, count: usize) {
        self.until_waiting(count);
        self.until_marked();
    }

    /// Until the record tells the holder of a waiter.
    #[track_caller]
    pub(crate) fn until_marked(&self) {
        until(|| {
            self.server.plain().get("lock:m").is_some_and(|record| record.ends_with(b" rings"))
        });
    }

    /// A lock that is held, and the only waiter for it, of this client.
    #[track_caller]
    pub(crate) fn waited_for(&self, client: &Client) -> (Lock, Receiver<Lock>) {
        let held = lock(&self.client());
        let waiter = waiter(client);
        self.until_seen(1);
        (held, waiter)
    }

    /// Puts entries without waiters into the queue: on this host, which says so, or elsewhere.
    pub(crate) fn add_dead(&self, listener: &str, ids: impl Iterator<Item = u64>) {
        let listener = WakeAddress::parse(listener.as_bytes());
        let lines: Vec<u8> =
            ids.flat_map(|id| entries::line(listener, WaitId(id), Request::default())).collect();
        self.append(&lines);
    }

    /// Puts these lines at the end of the queue.
    pub(crate) fn append(&self, value: &[u8]) {
        let (key, expiry) = (&self.queue, Expiry::After(LEASE * 10));
        let returns = Returns::Nothing;
        let ops = [Op::add(key, b"", expiry, returns), Op::Append { key, value }];
        assert_eq!(self.store.run(Route::of(&self.lock), &ops).unwrap()[1], Reply::Written);
    }

    pub(crate) fn delete(&self, key: &Key) {
        self.server.plain().command(&format!("delete {}", key.as_str()));
    }
}

pub(crate) fn connect(server: &Memcached) -> Arc<dyn Store> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    store::schemes::connect(&server.url(), &clock).unwrap()
}

#[track_caller]
pub(crate) fn until(done: impl FnMut() -> bool) {
    launch::until("it has come about", done);
}

pub(crate) fn lock(client: &Client) -> Lock {
    client.mutex("m", LEASE).unwrap().lock().unwrap()
}

/// Waits in another thread.
pub(crate) fn waiter(client: &Client) -> Receiver<Lock> {
    let (done, got) = mpsc::channel();
    let client = client.clone();
    thread::spawn(move || {
        // The receiver is gone when a test has failed.
        let _ = done.send(lock(&client));
    });
    got
}

/// A thread that waits in line with others of its client.
pub(crate) struct InLine {
    got: Receiver<Waited<Lock>>,
    pub(crate) cancel: Arc<Cancel>,
    thread: WaitingThread,
}

impl InLine {
    #[track_caller]
    pub(crate) fn gets(&self) -> Lock {
        match self.got.recv_timeout(PATIENCE).expect("the waiter was not woken") {
            Waited::Done(lock) => lock,
            other => panic!("{other:?}"),
        }
    }

    /// Whether it sleeps: a lock can be handed off to it.
    pub(crate) fn is_asleep(&self) -> bool {
        self.thread.is_asleep()
    }

    #[track_caller]
    pub(crate) fn is_interrupted(&self) {
        assert!(matches!(self.got.recv_timeout(PATIENCE).unwrap(), Waited::Interrupted));
    }
}

/// Waits in another thread of the same client, behind the waiters there. It sleeps by now.
pub(crate) fn in_line(client: &Client) -> InLine {
    let ((done, got), waiter) = (mpsc::channel(), WaitingThread::default());
    let cancel = Arc::new(client.cancel_handle());
    let (client, theirs, this) = (client.clone(), Arc::clone(&cancel), waiter.clone());
    thread::spawn(move || {
        this.is_this_one();
        let waited = client
            .mutex("m", LEASE)
            .unwrap()
            .lock_with(&Wait::FOREVER.unless_cancelled(&theirs))
            .unwrap();
        // The receiver is gone when a test has failed.
        let _ = done.send(waited);
    });
    until(|| waiter.is_asleep());
    InLine { got, cancel, thread: waiter }
}

#[track_caller]
pub(crate) fn gets(waiter: &Receiver<Lock>) -> Lock {
    waiter.recv_timeout(PATIENCE).expect("the waiter was not woken")
}

/// The lock of the waiter that gets it first.
pub(crate) fn one_of(waiters: &[Receiver<Lock>]) -> Lock {
    let mut got = None;
    until(|| {
        got = waiters.iter().find_map(|waiter| waiter.try_recv().ok());
        got.is_some()
    });
    got.unwrap()
}

pub(crate) fn unlock(mut lock: Lock) {
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// Unlocks the lock that is kept there, if there is one.
pub(crate) fn release(held: &Mutex<Option<Lock>>) {
    if let Some(lock) = held.lock().unwrap().take() {
        unlock(lock);
    }
}
