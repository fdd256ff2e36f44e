//! What all primitives use: the store, the clock, the keys, this process's identity, and the
//! notifier. The context knows none of the primitives.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::error::Result;
use crate::extensions::Extensions;
use crate::fork::{self, ForkLocal};
use crate::name::{Key, Keyspace, Named};
use crate::notify::{Notifier, Reach};
use crate::owner::Identity;
use crate::store::{Epoch, Guarantees, Node, Pending, Recovery, Request, Route, Silence, Store};

/// What the primitives of one client share. Cloning is cheap, and a clone is the same context.
///
/// A context may be used from any number of threads at once, and in children made by `fork`: a
/// child opens its own connections.
#[derive(Clone)]
pub(crate) struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    /// The process that made the client.
    process: u64,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    keys: Keyspace,
    guarantees: Guarantees,
    outage: Option<Duration>,
    identity: ForkLocal<Identity>,
    cancellations: AtomicU64,
    /// How many locks and permits this process holds.
    holds: ForkLocal<AtomicUsize>,
    closed: AtomicBool,
    notifier: Arc<dyn Notifier>,
    extensions: Extensions,
}

impl Context {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        keys: Keyspace,
        outage: Option<Duration>,
        notifier: Arc<dyn Notifier>,
    ) -> Context {
        let inner = Inner {
            // The detection of forks is set up here, so that no signal handler is the first to use
            // it.
            process: fork::generation(),
            guarantees: store.guarantees(),
            store,
            clock,
            keys,
            outage,
            identity: ForkLocal::new(),
            cancellations: AtomicU64::new(0),
            holds: ForkLocal::new(),
            closed: AtomicBool::new(false),
            notifier,
            extensions: Extensions::default(),
        };
        Context { inner: Arc::new(inner) }
    }

    /// Ends all waits in progress in this client, in any thread: each returns "interrupted". Later
    /// waits are not affected. May be called from a signal handler.
    pub(crate) fn cancel_waits(&self) {
        self.inner.cancellations.fetch_add(1, Ordering::SeqCst);
        self.inner.notifier.interrupt_all();
    }

    /// Ends all waits, as [`Context::cancel_waits`], and all later ones, including calls that try
    /// only once; and closes the connections. Held locks and permits stay held. Calls that acquire
    /// nothing still work, over new connections.
    pub(crate) fn close(&self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        self.cancel_waits();
        self.inner.notifier.close();
        self.inner.store.disconnect();
    }

    /// Whether [`Context::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::SeqCst)
    }

    /// The client's one value of this type, made at the first use. Several threads may make one at
    /// the same time, of which one is used: no thread waits, so no fork can happen while one waits.
    pub(crate) fn extension<T: Send + Sync + 'static>(&self, make: impl Fn() -> T) -> &T {
        self.inner.extensions.get_or_init(make)
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.inner.clock.as_ref()
    }

    /// The keys under which servers store names, with the URL's prefix.
    pub(crate) fn keys(&self) -> &Keyspace {
        &self.inner.keys
    }

    /// The guarantees of the store.
    pub(crate) fn guarantees(&self) -> &Guarantees {
        &self.inner.guarantees
    }

    /// The identity of this process; a forked child has another one than its parent.
    pub(crate) fn identity(&self) -> Result<&Identity> {
        self.inner.identity.get_or_try_init(|| {
            if self.inner.process != fork::generation() {
                log::debug!(
                    "This process is a fork of the one that made the client: it holds nothing of \
                     what that holds."
                );
            }
            Identity::new(self.clock())
        })
    }

    /// See [`Store::silence`].
    pub(crate) fn silence(&self, route: Route) -> Option<Silence> {
        self.inner.store.silence(route)
    }

    /// See [`Store::send`].
    pub(crate) fn send<'a>(&'a self, request: Request<'a>) -> Pending<'a> {
        self.inner.store.send(request)
    }

    /// How often [`Context::cancel_waits`] was called.
    pub(crate) fn cancellations(&self) -> u64 {
        self.inner.cancellations.load(Ordering::SeqCst)
    }

    /// This process holds one lock more.
    pub(crate) fn begin_hold(&self) {
        self.inner.holds.get().fetch_add(1, Ordering::Relaxed);
    }

    /// This process holds one lock less.
    pub(crate) fn end_hold(&self) {
        self.inner.holds.get().fetch_sub(1, Ordering::Relaxed);
    }

    /// Called before a thread sleeps for long, which gives its connection to the server that owns
    /// `route` back to a server that has few. One is kept while something is held: to renew or
    /// release it, another would have to be opened, which the server may refuse.
    pub(crate) fn rest(&self, route: Route) {
        let holds = self.inner.holds.get().load(Ordering::Relaxed) > 0;
        self.inner.store.rest(route, usize::from(holds));
    }

    /// See [`Store::is_crowded`].
    pub(crate) fn is_crowded(&self, route: Route) -> bool {
        self.inner.store.is_crowded(route)
    }

    /// The longest outage that a wait tolerates, if the URL says so.
    pub(crate) fn outage(&self) -> Option<Duration> {
        self.inner.outage
    }

    /// Whether wake-up messages reach this client's waiters, as far as is known by now.
    pub(crate) fn reach(&self) -> Reach {
        self.notifier().reach()
    }

    pub(crate) fn notifier(&self) -> &dyn Notifier {
        self.inner.notifier.as_ref()
    }

    /// The local address of connections to the server that owns `route`.
    pub(crate) fn local_address(&self, route: Route) -> Option<IpAddr> {
        self.inner.store.local_address(route)
    }

    /// The time of the server that owns `route`, too late rather than too early; `None` before the
    /// first contact.
    pub(crate) fn time(&self, route: Route) -> Option<Duration> {
        self.inner.store.time(route)
    }

    /// See [`Store::recovery`].
    pub(crate) fn recovery(&self, route: Route) -> Option<Recovery> {
        self.inner.store.recovery(route)
    }

    /// See [`Store::recovers_for`].
    pub(crate) fn recovers_for(&self, route: Route, life: Epoch) -> Duration {
        self.inner.store.recovers_for(route, life)
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.inner.store.as_ref()
    }

    /// The index of the server that owns `route`.
    pub(crate) fn server_of(&self, route: Route) -> usize {
        self.inner.store.server_of(route)
    }

    /// See [`Store::removal_sql`].
    pub(crate) fn removal_sql(&self, key: &Key, start: &[u8]) -> Option<String> {
        self.inner.store.removal_sql(key, start)
    }

    /// The node that owns `route`.
    pub(crate) fn node(&self, route: Route) -> Option<Node> {
        self.inner.store.nodes().into_iter().nth(self.server_of(route))
    }

    /// The server that owns `route`, for people.
    pub(crate) fn server_name(&self, route: Route) -> String {
        self.node(route).map_or_else(String::new, |node| node.title)
    }

    /// The name that `key` was made from, for people; the key itself if the name is too long to be
    /// read from it.
    pub(crate) fn name_of(&self, key: &Key) -> String {
        if let Some(name) = self.keys().exact_name(key) {
            return name.to_owned();
        }
        match self.keys().read(key.as_str()) {
            Some(Named { name: Some(name), .. }) => String::from_utf8_lossy(&name).into_owned(),
            _ => key.to_string(),
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("store", &self.inner.store).finish_non_exhaustive()
    }
}
