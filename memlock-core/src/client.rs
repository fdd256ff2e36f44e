//! The client: an URL, and the primitives that are made from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::context::Context;
use crate::counter::Counter;
use crate::distinct::DistinctList;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::mutex::Mutex;
use crate::name::{Keyspace, check_name};
use crate::notify::udp::UdpNotifier;
use crate::notify::{Notifier, NotifySetting, Reach};
use crate::semaphore::Semaphore;
#[cfg(feature = "admin")]
use crate::store::admin::Admin;
use crate::store::{Guarantees, Node, Route, Store, Url, schemes};
use crate::wait::Cancel;

/// How long a waiter rides out an unreachable server, unless the URL says otherwise.
const DEFAULT_OUTAGE: Duration = Duration::from_secs(5);

/// The way to one set of locks. Cloning is cheap and gives the same client.
///
/// It may be used from any number of threads at once, and in children made by `fork`: a child dials
/// its own connections. It has no threads of its own.
#[derive(Clone)]
pub struct Client {
    context: Context,
}

impl Client {
    /// Reads the URL and makes a client. **Nothing is dialled**: the first call that needs a server
    /// reports one that cannot be reached, so that a client can be made before its server is up.
    ///
    /// `memcached://host[:port][,host2…]?prefix=&connect_timeout=&io_timeout=&pool=&outage=&notify=`,
    /// or `memory://name` for locks among the threads of this process. Timeouts are written `250ms`
    /// or `2s`; `notify` is `off`, or the address by which waiters of other hosts reach this one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for an URL that cannot be read, with the
    /// known schemes or parameters.
    pub fn connect(url: &str) -> Result<Client> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut url = Url::parse(url)?;
        let store = schemes::open(&mut url, &clock)?;
        let keys = Keyspace::new(&url.take("prefix").unwrap_or_default())?;
        let outage = url.take_duration("outage", DEFAULT_OUTAGE)?;
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

    /// A client over a store and a clock of the caller's: for tests and simulations.
    pub fn with_store(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Client {
        Client::with_parts(store, clock, Arc::new(UdpNotifier::new(NotifySetting::Near)))
    }

    /// A client over a store, a clock and a notifier of the caller's: for simulations.
    pub fn with_parts(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        notifier: Arc<dyn Notifier>,
    ) -> Client {
        Client {
            context: Context::new(store, clock, Keyspace::default(), DEFAULT_OUTAGE, notifier),
        }
    }

    /// A mutex by this name, whose holders keep it for at most `lease` (1 second to 366 days)
    /// unless they extend it. Nothing is sent.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an empty name, one above 64 KiB or
    /// with a NUL byte, and for a lease out of range.
    pub fn mutex(&self, name: impl AsRef<[u8]>, lease: Duration) -> Result<Mutex> {
        check_name(name.as_ref())?;
        Ok(Mutex::new(self.context.clone(), self.keys().lock(name.as_ref()), Lease::new(lease)?))
    }

    /// A semaphore by this name with so many permits (1 to 4,294,967,295), which a holder keeps for
    /// at most `lease` (1 second to 366 days) unless it extends them. Nothing is sent. The number
    /// is part of what all clients share: a handle that was opened with another one gets an error
    /// at its first use.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for no permits, an empty name, one above
    /// 64 KiB or with a NUL byte, and for a lease out of range.
    pub fn semaphore(
        &self,
        name: impl AsRef<[u8]>,
        permits: u32,
        lease: Duration,
    ) -> Result<Semaphore> {
        self.semaphore_of(name.as_ref(), Some(permits), lease)
    }

    /// A semaphore by this name that another client sets up, with however many permits it has.
    /// Where there is none, acquiring answers [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
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
        check_name(name)?;
        Semaphore::new(
            self.context.clone(),
            self.keys().semaphore(name),
            permits,
            Lease::new(lease)?,
        )
    }

    /// The plain counter of free permits in the item of this key, which other programs may use too:
    /// see [`Counter`]. It has no leases. Nothing is sent. The URL's prefix stands before the key.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a key that memcached does not take, or
    /// above 245 bytes.
    pub fn counter(&self, key: impl AsRef<[u8]>) -> Result<Counter> {
        Ok(Counter::new(self.context.clone(), self.keys().exact(key.as_ref())?))
    }

    /// A distinct list by this session name. Nothing is sent: see [`DistinctList::set_up`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an empty name, one above 64 KiB or
    /// with a NUL byte.
    pub fn distinct_list(&self, session: impl AsRef<[u8]>) -> Result<DistinctList> {
        check_name(session.as_ref())?;
        Ok(DistinctList::new(self.context.clone(), session.as_ref()))
    }

    /// Ends every wait that is going on in this client, in any thread: each answers "interrupted".
    /// Waits that begin later are not touched. A signal handler may call it.
    pub fn cancel_waits(&self) {
        self.context.cancel_waits();
    }

    /// Ends every wait, as [`Client::cancel_waits`], and every one that begins later, also one that
    /// would try only once; and closes the connections. What is held stays held. Calls that acquire
    /// nothing go on working, and dial anew.
    pub fn close(&self) {
        self.context.close();
    }

    /// Whether [`Client::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.context.is_closed()
    }

    /// A handle by which single waits of this client can be ended: see
    /// [`Wait::unless_cancelled`](crate::Wait).
    pub fn cancel_handle(&self) -> Cancel {
        Cancel::new(self.context.clone())
    }

    /// The keys under which the servers know names, with the URL's prefix.
    pub fn keys(&self) -> &Keyspace {
        self.context.keys()
    }

    /// Whether wake-up messages reach this client's waiters, as far as they know by now.
    pub fn reach(&self) -> Reach {
        self.context.reach()
    }

    /// What the store promises.
    pub fn guarantees(&self) -> Guarantees {
        *self.context.guarantees()
    }

    /// Its servers, or what keeps the items in their place. Nothing is sent.
    pub fn nodes(&self) -> Vec<Node> {
        self.context.store().nodes()
    }

    /// A tool's own connection to one of its nodes.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read, and
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) where there is nothing to be examined.
    #[cfg(feature = "admin")]
    pub fn admin(&self, node: usize) -> Result<Box<dyn Admin + '_>> {
        self.context.store().admin(node)
    }

    /// Which of its nodes owns `route`.
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
