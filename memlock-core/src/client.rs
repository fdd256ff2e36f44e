//! The client: made from a URL; the primitives are made from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::context::Context;
use crate::counter::Counter;
use crate::distinct_list::DistinctList;
use crate::error::{Error, Result};
use crate::mutex::Mutex;
use crate::name::Keyspace;
use crate::names;
use crate::notify::udp::UdpNotifier;
use crate::notify::{Notifier, NotifySetting, Reach};
use crate::semaphore::Semaphore;
#[cfg(feature = "admin")]
use crate::store::admin::Admin;
use crate::store::{Guarantees, Node, Route, Store, Url, schemes};
use crate::wait::Cancel;

/// Access to one set of locks. Cloning is cheap, and a clone is the same client.
///
/// A client may be used from any number of threads at once, and in children made by `fork`: a child
/// opens its own connections. A callback or a logger may fork, and so may a signal handler that
/// interrupts a call, but the child may then only call async-signal-safe functions, `exec` or `_exit`:
/// what else it does, also by returning from the callback or handler, is undefined. A client starts no
/// thread until a lease is renewed. A daemon that closes all descriptors does so before its first
/// call, or drops its clients first.
#[derive(Clone)]
pub struct Client {
    context: Context,
}

impl Client {
    /// Parses the URL and makes a client. **No connection is opened**: the first call that needs a
    /// server reports one that cannot be reached, so a client can be made before its server is up.
    ///
    /// `memcached://host[:port][,host2…]`, with the parameters
    /// `?prefix=&connect_timeout=&io_timeout=&pool=&outage=&notify=`; or `sqlite:///path` for a
    /// file; or `memory://name` for locks among the threads of this process. Timeouts are written
    /// `250ms` or `2s`; `notify` is `off`, or the address by which waiters of other hosts reach
    /// this one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a URL that cannot be parsed; the error
    /// lists the known schemes or parameters.
    pub fn connect(url: &str) -> Result<Client> {
        Client::with_clock(url, Arc::new(SystemClock))
    }

    /// The same, with waits and leases by the caller's clock, and the store by the machine's: for
    /// tests.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn with_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Client> {
        let mut url = Url::parse(url)?;
        let of_the_machine: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = schemes::open(&mut url, &of_the_machine)?;
        let keys = Keyspace::new(&url.take("prefix").unwrap_or_default())?;
        let outage = url.take_some_duration("outage", Duration::from_millis(1), "250ms or 2s")?;
        let (notify, alias) = (url.take("notify"), url.take("bell"));
        if notify.is_some() && alias.is_some() {
            return Err(Error::config(
                "The URL has notify= and bell=, which is its older name: write notify= alone.",
            ));
        }
        let notify = notify.or(alias);
        let notify = notify.map_or(Ok(NotifySetting::Near), |text| NotifySetting::parse(&text))?;
        url.finish()?;
        Ok(Client {
            context: Context::new(store, clock, keys, outage, Arc::new(UdpNotifier::new(notify))),
        })
    }

    /// A client with the caller's store and clock: for tests and simulations.
    pub fn with_store(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Client {
        Client::with_parts(store, clock, Arc::new(UdpNotifier::new(NotifySetting::Near)))
    }

    /// A client with the caller's store, clock and notifier: for simulations.
    pub fn with_parts(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        notifier: Arc<dyn Notifier>,
    ) -> Client {
        Client { context: Context::new(store, clock, Keyspace::default(), None, notifier) }
    }

    /// The mutex of this name. A holder keeps it for at most `lease` (1 second to 366 days) unless
    /// the holder extends it. Nothing is sent.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an empty name, a name above 64 KiB, with a
    /// NUL byte or with the URL of a store that may have a password in it, and for a lease out of range.
    pub fn mutex(&self, name: impl AsRef<[u8]>, lease: Duration) -> Result<Mutex> {
        names::check(name.as_ref())?;
        Mutex::new(self.context.clone(), self.keys().lock(name.as_ref()), lease)
    }

    /// The semaphore of this name, with this number of permits (1 to 4,294,967,295). A holder keeps
    /// its permits for at most `lease` (1 second to 366 days) unless the holder extends them.
    /// Nothing is sent. All clients share the number of permits: if the semaphore exists with
    /// another number, that one applies, and a warning is logged; [`Semaphore::with_mismatch`]
    /// changes this.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for no permits, and as [`Client::mutex`].
    pub fn semaphore(
        &self,
        name: impl AsRef<[u8]>,
        permits: u32,
        lease: Duration,
    ) -> Result<Semaphore> {
        self.semaphore_of(name.as_ref(), Some(permits), lease)
    }

    /// The semaphore of this name, which another client sets up, with any number of permits. If
    /// there is none, acquiring fails with [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    /// Nothing is sent.
    ///
    /// # Errors
    /// As [`Client::semaphore`].
    pub fn open_semaphore(&self, name: impl AsRef<[u8]>, lease: Duration) -> Result<Semaphore> {
        self.semaphore_of(name.as_ref(), None, lease)
    }

    fn semaphore_of(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
    ) -> Result<Semaphore> {
        names::check(name)?;
        Semaphore::new(self.context.clone(), self.keys().semaphore(name), permits, lease)
    }

    /// The plain counter of free permits in the item of this key, which other programs may use,
    /// too: see [`Counter`]. It has no leases. Nothing is sent. The URL's prefix precedes the key.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a key that memcached does not accept, that
    /// has more than 245 bytes, or the URL of a store that may have a password in it.
    pub fn counter(&self, key: impl AsRef<[u8]>) -> Result<Counter> {
        names::check_for_secrets(key.as_ref())?;
        Ok(Counter::new(self.context.clone(), self.keys().exact(key.as_ref())?))
    }

    /// The distinct list of this session name. Nothing is sent: see [`DistinctList::set_up`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for the names that [`Client::mutex`] refuses.
    pub fn distinct_list(&self, session: impl AsRef<[u8]>) -> Result<DistinctList> {
        names::check(session.as_ref())?;
        Ok(DistinctList::new(self.context.clone(), session.as_ref()))
    }

    /// Ends all waits in progress in this client, in any thread: each returns "interrupted". Later
    /// waits are not affected. May be called from a signal handler.
    pub fn cancel_waits(&self) {
        self.context.cancel_waits();
    }

    /// Ends all waits, as [`Client::cancel_waits`], and all later ones, including calls that try
    /// only once; and closes the connections. Held locks and permits stay held. Calls that acquire
    /// nothing still work, over new connections.
    pub fn close(&self) {
        self.context.close();
    }

    /// Whether [`Client::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.context.is_closed()
    }

    /// A handle that cancels single waits of this client: see
    /// [`Wait::unless_cancelled`](crate::Wait).
    pub fn cancel_handle(&self) -> Cancel {
        Cancel::new(self.context.clone())
    }

    /// The keys under which servers store names, with the URL's prefix.
    pub fn keys(&self) -> &Keyspace {
        self.context.keys()
    }

    /// Whether wake-up messages reach this client's waiters, as far as is known by now.
    pub fn reach(&self) -> Reach {
        self.context.reach()
    }

    /// The guarantees of the store.
    pub fn guarantees(&self) -> Guarantees {
        *self.context.guarantees()
    }

    /// The servers, or whatever stores the items in their place. Nothing is sent.
    pub fn nodes(&self) -> Vec<Node> {
        self.context.store().nodes()
    }

    /// What is missing on this node as long as nothing has been stored there, as a sentence: a file
    /// that the first lock creates. `None` if nothing is missing. Nothing is sent or created.
    #[cfg(feature = "admin")]
    pub fn missing(&self, node: usize) -> Option<String> {
        self.context.store().missing(node)
    }

    /// A separate connection to one of the nodes, for a tool.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read, and
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if there is nothing to examine.
    #[cfg(feature = "admin")]
    pub fn admin(&self, node: usize) -> Result<Box<dyn Admin + '_>> {
        self.context.store().admin(node)
    }

    /// The index of the node that owns `route`.
    pub fn server_of(&self, route: Route) -> usize {
        self.context.server_of(route)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("context", &self.context).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bell_is_an_older_name_of_notify() {
        for url in ["memory://x?notify=off", "memory://x?bell=off"] {
            assert!(Client::connect(url).is_ok(), "{url}");
        }
        let error = Client::connect("memory://x?bell=off&notify=off").unwrap_err();
        assert!(error.to_string().contains("older name"), "{error}");
        let error = Client::connect("memory://x?bell=nonsense").unwrap_err();
        assert!(error.to_string().contains("notify=off"), "{error}");
    }
}
