//! Waiters on a server that has few connections to give.

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use memlock_core::name::Keyspace;
use memlock_core::store::{Op, Reply, Route};
use memlock_core::wait::entries;
use memlock_core::{Client, Release, RenewOptions, Wait, Waited};

use crate::client::{self, LEASE, PATIENCE, connect, is_granted, until_renewed};
use crate::fork::Forked;
use crate::launch::until;

/// The lease of locks that are renewed, which is every 3 seconds.
const RENEWED: Duration = Duration::from_secs(9);
/// The lock that is waited for.
const NAME: &str = "waited for";

/// A place on such a server.
pub struct FewConnections<'a> {
    /// Of its clients.
    pub url: String,
    /// How many sessions its clients have.
    pub sessions: &'a dyn Fn() -> usize,
}

impl FewConnections<'_> {
    fn client(&self) -> Client {
        connect(&self.url)
    }

    /// How many waiters are in the queue. Leaves no session.
    fn queued(&self) -> usize {
        self.queued_if_read().unwrap_or_default()
    }

    fn queued_if_read(&self) -> Option<usize> {
        let store = client::store(&self.url);
        let queue = Keyspace::default().lock(NAME.as_bytes()).waiters();
        let replies = store.run(Route::of(&queue), &[Op::get(&queue)]);
        match replies.as_deref() {
            Ok([Reply::Value(item)]) => Some(entries::waiters(&item.value).count()),
            Ok(_) => Some(0),
            Err(_) => None,
        }
    }

    /// For how long the server keeps a lock, as a client sees it that leaves no session.
    fn remaining(&self, name: &str) -> Option<Duration> {
        self.client().mutex(name, LEASE).expect("a good name").owner().ok()??.remaining
    }

    /// Clients that have all sessions that are left.
    fn fill(&self) -> Vec<Client> {
        let connects = |number| {
            let client = self.client();
            let tried = client.mutex(format!("{number}"), LEASE).expect("a good name").try_lock();
            tried.is_ok().then_some(client)
        };
        (0..1000).map_while(connects).collect()
    }

    /// So many processes wait, more than there are connections: but for two, they leave them to
    /// others, also to the holder, whose connection is lost by `end_sessions`. All of them are
    /// served.
    pub fn are_left_by_waiters(&self, waiters: usize, end_sessions: impl FnOnce()) {
        let holder = self.client().mutex(NAME, RENEWED).expect("a good name").lock();
        let held = holder.expect("it is free").renew(RenewOptions::default()).expect("a thread");
        let start = |_| Forked::start(120, || is_served(&self.client()));
        let waiting: Vec<Forked> = (0..waiters).map(start).collect();
        until("all wait", || self.queued() == waiters);
        // The holder, and the first in the queue.
        until("they sleep without a session", || (self.sessions)() <= 2);
        end_sessions();
        until_renewed("over a new connection", || self.remaining(NAME));
        let newcomer = self.client().mutex("other", LEASE).expect("a good name");
        until("a newcomer is let in", || is_granted(newcomer.try_lock()));
        assert!(held.is_held() && held.lost().is_none());
        assert_eq!(held.release().expect("the server answers"), Release::Released);
        let unserved = waiting.into_iter().map(Forked::was_right).filter(|&served| !served).count();
        assert_eq!(unserved, 0, "of {waiters}");
    }

    /// A waiter that holds another lock renews that also on a server that takes no more
    /// connections.
    pub fn are_kept_for_renewals(&self) {
        let mutex = |client: &Client| client.mutex(NAME, LEASE).expect("a good name");
        let (holder, first, second) = (self.client(), self.client(), self.client());
        let mut held = mutex(&holder).lock().expect("it is free");
        let own = second.mutex("own", RENEWED).expect("a good name").lock().expect("it is free");
        let own = own.renew(RenewOptions::default()).expect("a thread");
        thread::scope(|scope| {
            for (number, client) in [&first, &second].into_iter().enumerate() {
                scope.spawn(move || assert!(is_served(client)));
                until("it waits", || self.queued() > number);
            }
            let others = RefCell::new(self.fill());
            let remaining = || {
                // Others take each session that is given back.
                others.borrow_mut().extend(self.fill());
                own.remaining()
            };
            // A waiter that is the second looks after less time.
            until_renewed("on the full server", remaining);
            until_renewed("on the full server", remaining);
            assert!(own.is_held() && own.lost().is_none());
            assert_eq!(held.unlock().expect("the server answers"), Release::Released);
        });
        assert_eq!(own.release().expect("the server answers"), Release::Released);
    }
}

impl FewConnections<'_> {
    /// A wait that ends while its client has no session, and the server none to give, leaves the
    /// queue as soon as there is one.
    pub fn leave_the_queue(&self) {
        let mutex = |client: &Client| client.mutex(NAME, LEASE).expect("a good name");
        let (holder, first) = (self.client(), self.client());
        let mut held = mutex(&holder).lock().expect("it is free");
        thread::scope(|scope| {
            scope.spawn(|| assert!(is_granted(mutex(&first).lock_for(2 * PATIENCE))));
            until("it waits", || self.queued() == 1);
            // The session may come too late on a busy machine.
            until("nothing is left in the queue", || {
                let (client, before) = (self.client(), self.queued());
                let waiting = mutex(&client);
                let waiting = scope.spawn(move || waiting.lock_with(&Wait::FOREVER));
                until("it waits", || self.queued() == before + 1);
                until("it sleeps without a session", || (self.sessions)() <= 2);
                let others = self.fill();
                client.cancel_waits();
                thread::sleep(Duration::from_millis(100));
                drop(others);
                let ended = waiting.join().expect("no panic").expect("the server answers");
                assert!(matches!(ended, Waited::Interrupted), "{ended:?}");
                let mut queued = None;
                until("it can be read", || {
                    queued = self.queued_if_read();
                    queued.is_some()
                });
                queued == Some(before)
            });
            assert_eq!(held.unlock().expect("the server answers"), Release::Released);
        });
    }
}

/// Whether it is granted the lock in time. It has held another one before.
fn is_served(client: &Client) -> bool {
    let wait = |name: &str| client.mutex(name, LEASE).expect("a good name").lock_for(2 * PATIENCE);
    let earlier = wait(&format!("of {}", std::process::id())).expect("the server answers");
    let mut earlier = earlier.expect("it is free");
    assert_eq!(earlier.unlock().expect("the server answers"), Release::Released);
    let is_granted = is_granted(wait(NAME));
    drop(earlier);
    is_granted
}
