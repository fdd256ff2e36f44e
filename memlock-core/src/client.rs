//! The client: one connection to the place where the locks are, shared by any number of threads.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::counter::Counter;
use crate::distinct::DistinctList;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::{self, ForkLocal};
use crate::lease::Lease;
use crate::mutex::{self, Lock, Mutex};
use crate::name::{Key, Keyspace, Named, check_name};
use crate::notify::udp::UdpNotifier;
use crate::notify::{Notifier, NotifySetting, Reach};
use crate::owner::{Identity, Token, is_ours};
use crate::renewal::Renewer;
use crate::semaphore::{self, Combiner, Permit, Semaphore};
use crate::store::url::Url;
use crate::store::{self, Address, Failure, Item, Op, Reply, Route, Store};
use crate::wait::Cancel;
use crate::wait::local::LocalWaiters;

/// How long a waiter rides out an unreachable server, unless the URL says otherwise.
const DEFAULT_OUTAGE: Duration = Duration::from_secs(5);

/// How often in a row a step is sent before its outcome counts as unknown.
pub(crate) const ATTEMPTS: usize = 3;

/// How long a stray is left alone after it was looked for in vain; the next pauses are longer.
const ORPHAN_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_ORPHAN_PAUSE: Duration = Duration::from_secs(30);
/// How many are taken off at one contact: each takes two round trips of somebody else's call.
const ORPHANS_AT_ONCE: usize = 16;
/// Those take no longer of the call that meets the server than this, and one of them.
const ORPHANS_TAKE: Duration = Duration::from_millis(50);

/// The way to one set of locks. Cloning is cheap and gives the same client.
///
/// It may be used from any number of threads at once, and in children made by `fork`: a child dials
/// its own connections. It has no threads of its own.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// Requests of this handle fail at once on a server that is silent: see [`Client::for_drop`].
    skips_silent: bool,
}

struct Inner {
    /// Which process made the client.
    process: u64,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    keys: Keyspace,
    stamp: Key,
    outage: Duration,
    identity: ForkLocal<Identity>,
    cancellations: AtomicU64,
    closed: AtomicBool,
    orphans: ForkLocal<Orphans>,
    notifier: Arc<dyn Notifier>,
    mutex_waiters: LocalWaiters<mutex::HandoffRequest, Lock>,
    semaphore_waiters: LocalWaiters<(), Permit>,
    counter_waiters: LocalWaiters<(), ()>,
    renewer: ForkLocal<Renewer>,
    combiners: ForkLocal<StdMutex<HashMap<Key, Weak<Combiner>>>>,
}

/// Locks that may have been granted to us after the caller was told otherwise: their replies were
/// lost and reading back failed. They are taken off as soon as the server can be reached again.
#[derive(Default)]
struct Orphans {
    any: AtomicBool,
    list: StdMutex<Vec<OrphanedGrant>>,
}

#[derive(Clone)]
struct OrphanedGrant {
    kind: Kind,
    route: Route,
    key: Key,
    token: Token,
    /// After this the server has let go of it by itself.
    until: Moment,
    /// Not to be tried before.
    next_try: Moment,
    /// How long it was left alone the last time.
    pause: Duration,
}

/// What was left behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lock,
    Permits,
}

impl Client {
    /// Reads the URL and makes a client. **Nothing is dialled**: the first call that needs a server
    /// reports one that cannot be reached, so that a client can be made before its server is up.
    ///
    /// `memcached://host[:port][,host2…]?prefix=&connect_timeout=&io_timeout=&pool=&outage=&bell=`,
    /// or `memory://name` for locks among the threads of this process. Timeouts are written `250ms`
    /// or `2s`; `bell` is `off`, or the address by which waiters of other hosts reach this one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for an URL that cannot be read, with the known
    /// schemes or parameters.
    pub fn connect(url: &str) -> Result<Client> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut url = Url::parse(url)?;
        let store = store::open(&mut url, &clock)?;
        let keys = Keyspace::new(&url.take("prefix").unwrap_or_default())?;
        let outage = url.take_duration("outage", DEFAULT_OUTAGE)?;
        let bell =
            url.take("bell").map_or(Ok(NotifySetting::Near), |text| NotifySetting::parse(&text))?;
        url.finish()?;
        Ok(Client::assemble(store, clock, keys, outage, Arc::new(UdpNotifier::new(bell))))
    }

    /// A client over a store and a clock of the caller's: for tests and simulations.
    pub fn with_store(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Client {
        Client::with_parts(store, clock, Arc::new(UdpNotifier::new(NotifySetting::Near)))
    }

    /// A client over a store, a clock and bells of the caller's: for simulations.
    pub fn with_parts(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        notifier: Arc<dyn Notifier>,
    ) -> Client {
        Client::assemble(store, clock, Keyspace::default(), DEFAULT_OUTAGE, notifier)
    }

    fn assemble(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        keys: Keyspace,
        outage: Duration,
        notifier: Arc<dyn Notifier>,
    ) -> Client {
        let inner = Inner {
            // What watches for forks is set up here, so that no signal handler is the first to ask.
            process: fork::generation(),
            store,
            clock,
            stamp: keys.stamp(),
            keys,
            outage,
            identity: ForkLocal::new(),
            cancellations: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            orphans: ForkLocal::new(),
            notifier,
            mutex_waiters: LocalWaiters::default(),
            semaphore_waiters: LocalWaiters::side_by_side(),
            counter_waiters: LocalWaiters::side_by_side(),
            renewer: ForkLocal::new(),
            combiners: ForkLocal::new(),
        };
        Client { inner: Arc::new(inner), skips_silent: false }
    }

    /// A mutex by this name, whose holders keep it for at most `lease` (1 second to 366 days)
    /// unless they extend it. Nothing is sent.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an empty name, one above 64 KiB or with a NUL
    /// byte, and for a lease out of range.
    pub fn mutex(&self, name: impl AsRef<[u8]>, lease: Duration) -> Result<Mutex> {
        check_name(name.as_ref())?;
        Ok(Mutex::new(self.clone(), self.inner.keys.lock(name.as_ref()), Lease::new(lease)?))
    }

    /// A semaphore by this name with so many permits (1 to 4,294,967,295), of which a holder keeps
    /// what it has for at most `lease` (1 second to 366 days) unless it extends it. Nothing is
    /// sent. The number is part of what all share: who opens it with another one gets an error at
    /// the first use.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for no permits, an empty name, one above 64 KiB or with a NUL byte,
    /// and for a lease out of range.
    pub fn semaphore(
        &self,
        name: impl AsRef<[u8]>,
        permits: u32,
        lease: Duration,
    ) -> Result<Semaphore> {
        self.semaphore_of(name.as_ref(), Some(permits), lease)
    }

    /// A semaphore by this name that somebody else sets up, with however many permits it has. Where
    /// there is none, acquiring answers [`ErrorKind::NotFound`]. Nothing is sent.
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
        Semaphore::new(self.clone(), self.inner.keys.semaphore(name), permits, Lease::new(lease)?)
    }

    /// The plain counter of free permits in the item of this key, which other programs may use too:
    /// see [`Counter`]. It has no leases. Nothing is sent. The URL's prefix stands before the key.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a key that memcached does not take, or above 245 bytes.
    pub fn counter(&self, key: impl AsRef<[u8]>) -> Result<Counter> {
        Ok(Counter::new(self.clone(), self.inner.keys.plain(key.as_ref())?))
    }

    /// A distinct list by this session name. Nothing is sent: see [`DistinctList::set_up`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an empty name, one above 64 KiB or with a NUL
    /// byte.
    pub fn distinct_list(&self, session: impl AsRef<[u8]>) -> Result<DistinctList> {
        check_name(session.as_ref())?;
        Ok(DistinctList::new(self.clone(), session.as_ref()))
    }

    /// Ends every wait that is going on in this client, in any thread: each answers "interrupted".
    /// Waits that begin later are not touched. A signal handler may call it.
    pub fn cancel_waits(&self) {
        self.inner.cancellations.fetch_add(1, Ordering::SeqCst);
        self.inner.notifier.interrupt_all();
    }

    /// Ends every wait, as [`Client::cancel_waits`], and every one that begins later, also one that
    /// would try only once; and closes the connections. What is held stays held. Calls that acquire
    /// nothing go on working, and dial anew.
    pub fn close(&self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        self.cancel_waits();
        self.inner.store.disconnect();
    }

    /// Whether [`Client::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::SeqCst)
    }

    /// A handle by which single waits of this client can be ended: see
    /// [`Wait::unless_cancelled`](crate::Wait).
    pub fn cancel_handle(&self) -> Cancel {
        Cancel::new(self.clone())
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.inner.clock.as_ref()
    }

    /// The keys under which the servers know names, with the URL's prefix.
    pub fn keys(&self) -> &Keyspace {
        &self.inner.keys
    }

    /// What makes a fence rise where the server's versions do not by themselves.
    pub(crate) fn stamp(&self) -> Op<'_> {
        Op::Stamp { key: &self.inner.stamp }
    }

    /// Who we are; in a forked child somebody else than in the parent.
    pub(crate) fn identity(&self) -> Result<&Identity> {
        self.inner.identity.get_or_try_init(|| {
            if self.inner.process != fork::generation() {
                log::debug!(
                    "This process is a fork of the one that made the client: it holds nothing of what that holds."
                );
            }
            Identity::new(self.clock())
        })
    }

    /// The same client for what happens without a call of the user: dropping locks, and cleaning
    /// up. It asks nothing of a server that did not answer a short while ago, so that dropping any
    /// number of locks costs one timeout per server.
    pub(crate) fn for_drop(&self) -> Client {
        Client { inner: Arc::clone(&self.inner), skips_silent: true }
    }

    /// The same client for calls of the user, which are always tried.
    pub(crate) fn for_calls(&self) -> Client {
        Client { inner: Arc::clone(&self.inner), skips_silent: false }
    }

    /// Whether nothing is asked of the server that owns `route`, by this handle and for now.
    pub(crate) fn skips(&self, route: Route) -> bool {
        self.skips_silent && self.inner.store.is_silent(route)
    }

    fn skip_if_silent(&self, route: Route) -> std::result::Result<(), Failure> {
        if !self.skips(route) {
            return Ok(());
        }
        let server = self.servers().into_iter().nth(self.server_of(route));
        let name = server.map_or_else(String::new, |server| format!(" at {}", server.name));
        let text =
            format!("memcached{name} did not answer a moment ago, so it was not asked again.");
        Err(Failure { error: Error::new(ErrorKind::Unreachable, text), sent: false })
    }

    pub(crate) fn run(
        &self,
        route: Route,
        ops: &[Op<'_>],
    ) -> std::result::Result<Vec<Reply>, Failure> {
        self.skip_if_silent(route)?;
        unless_astray(|| self.inner.store.run(route, ops))
    }

    /// As [`Client::run`], and calls `meanwhile` while the request is on its way.
    pub(crate) fn run_while(
        &self,
        route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        self.skip_if_silent(route)?;
        unless_astray(|| self.inner.store.run_while(route, ops, meanwhile))
    }

    /// How often [`Client::cancel_waits`] was called.
    pub(crate) fn cancellations(&self) -> u64 {
        self.inner.cancellations.load(Ordering::SeqCst)
    }

    /// How long the server may be out of reach before a waiter gives up.
    pub(crate) fn outage(&self) -> Duration {
        self.inner.outage
    }

    /// Whether wake-up messages reach this client's waiters, as far as they know by now.
    pub fn reach(&self) -> Reach {
        self.notifier().reach()
    }

    pub(crate) fn notifier(&self) -> &dyn Notifier {
        self.inner.notifier.as_ref()
    }

    /// The address by which we reach the server that owns `route`.
    pub(crate) fn local_address(&self, route: Route) -> Option<IpAddr> {
        self.inner.store.local_address(route)
    }

    /// The time of the server that owns `route`, rather too late than too early, once it was spoken
    /// to.
    pub(crate) fn time(&self, route: Route) -> Option<u64> {
        self.inner.store.time(route)
    }

    /// Its servers, for tools that look at them from outside; none for `memory://`. Nothing is
    /// sent.
    pub fn servers(&self) -> Vec<Address> {
        self.inner.store.servers()
    }

    /// Which of its servers owns `route`.
    pub fn server_of(&self, route: Route) -> usize {
        self.inner.store.server_of(route)
    }

    /// The server that owns `route`, for people.
    pub(crate) fn server_name(&self, route: Route) -> String {
        match self.servers().get(self.server_of(route)) {
            Some(server) => format!("memcached at {}", server.name),
            None => "this process's memory".to_owned(),
        }
    }

    /// The name that `key` was made from, for people; of a name that is too long to be read from
    /// it, the key.
    pub(crate) fn name_of(&self, key: &Key) -> String {
        match self.keys().read(key.as_str()) {
            Some(Named { name: Some(name), .. }) => String::from_utf8_lossy(&name).into_owned(),
            _ => key.to_string(),
        }
    }

    /// What is kept in this process.
    pub(crate) fn renewer(&self) -> &Renewer {
        self.inner.renewer.get()
    }

    /// Where the threads of this process meet that change the semaphore of this key.
    pub(crate) fn combiner(&self, key: &Key) -> Arc<Combiner> {
        let mut combiners =
            self.inner.combiners.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(combiner) = combiners.get(key).and_then(Weak::upgrade) {
            return combiner;
        }
        // Those that nobody uses any more, each time the map would have to grow.
        if combiners.len() == combiners.capacity() {
            combiners.retain(|_, combiner| combiner.strong_count() > 0);
        }
        let combiner = Arc::<Combiner>::default();
        combiners.insert(key.clone(), Arc::downgrade(&combiner));
        combiner
    }

    /// Who waits for permits in this process.
    pub(crate) fn semaphore_waiters(&self) -> &LocalWaiters<(), Permit> {
        &self.inner.semaphore_waiters
    }

    /// Who is parked at a counter in this process.
    pub(crate) fn counter_waiters(&self) -> &LocalWaiters<(), ()> {
        &self.inner.counter_waiters
    }

    /// Who waits for a mutex in this process.
    pub(crate) fn mutex_waiters(&self) -> &LocalWaiters<mutex::HandoffRequest, Lock> {
        &self.inner.mutex_waiters
    }

    /// Remembers a lock that may be ours although nobody holds it, to take it off later. `until`:
    /// when the server lets go of it anyway.
    pub(crate) fn remember_orphan(&self, route: Route, key: &Key, token: Token, until: Moment) {
        self.remember_grant(Kind::Lock, route, key, token, until);
    }

    /// As [`Client::remember_orphan`], for permits.
    pub(crate) fn remember_orphaned_permits(
        &self,
        route: Route,
        key: &Key,
        token: Token,
        until: Moment,
    ) {
        self.remember_grant(Kind::Permits, route, key, token, until);
    }

    fn remember_grant(&self, kind: Kind, route: Route, key: &Key, token: Token, until: Moment) {
        let process = fork::process();
        log::info!(
            "What was asked for of {key} may be left behind on its server; it is taken off at the next contact."
        );
        // It is the parent's of a child that was made on the way.
        if process != fork::generation() {
            return;
        }
        let orphans = self.inner.orphans.get();
        let mut list = orphans.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(OrphanedGrant {
            kind,
            route,
            key: key.clone(),
            token,
            until,
            next_try: self.clock().now(),
            pause: ORPHAN_PAUSE,
        });
        orphans.any.store(true, Ordering::Release);
    }

    /// Takes strays off: those on the server of this route, so many at a time, and one of another
    /// server's. A server that is silent is left alone, so that it does not hold up the use of
    /// another. Costs one atomic read when there are none.
    pub(crate) fn reap_orphans(&self, route: Route) {
        let orphans = self.inner.orphans.get();
        if !orphans.any.load(Ordering::Acquire) {
            return;
        }
        let (now, server) = (self.clock().now(), self.server_of(route));
        let mut list = orphans.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|orphan| orphan.until > now);
        let (mut here, mut elsewhere) = (ORPHANS_AT_ONCE, 1);
        let due: Vec<OrphanedGrant> = list
            .extract_if(.., |orphan| {
                let left =
                    if self.server_of(orphan.route) == server { &mut here } else { &mut elsewhere };
                let is_due = *left > 0
                    && orphan.next_try <= now
                    && !self.inner.store.is_silent(orphan.route);
                *left -= usize::from(is_due);
                is_due
            })
            .collect();
        orphans.any.store(!list.is_empty(), Ordering::Release);
        drop(list);
        let client = self.for_drop();
        let mut due = due.into_iter();
        while let Some(mut orphan) = due.next() {
            // What is not there yet may still be under way, so only one that was removed is done
            // with.
            let OrphanedGrant { kind, route, ref key, token, .. } = orphan;
            let (taken, ring): (_, fn(&Client, Route, &Key)) = match kind {
                Kind::Lock => {
                    (matches!(client.reap(route, key, token), Ok(true)), mutex::wake_next)
                }
                Kind::Permits => (
                    matches!(semaphore::reap(&client, route, key, token), Ok(true)),
                    semaphore::wake_next,
                ),
            };
            if taken {
                log::debug!("What was left behind of {key} was taken off.");
                ring(&client, route, key);
            }
            if fork::is_astray() {
                return;
            }
            let after = self.clock().now();
            orphan.pause = (orphan.pause * 2).min(LONGEST_ORPHAN_PAUSE);
            orphan.next_try = after + orphan.pause;
            // A slow server is asked for the others at later contacts.
            let left = if after.since(now) > ORPHANS_TAKE { due.len() } else { 0 };
            let mut list = orphans.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.extend((!taken).then_some(orphan).into_iter().chain(due.by_ref().take(left)));
            orphans.any.store(!list.is_empty(), Ordering::Release);
        }
    }

    /// Removes the item if it carries this token, whatever its version. True when it did.
    fn reap(&self, route: Route, key: &Key, token: Token) -> std::result::Result<bool, Failure> {
        for _ in 0..ATTEMPTS {
            let Reply::Value(item) = self.one(route, Op::Get { key })? else { return Ok(false) };
            if !is_ours(&item.value, token) {
                return Ok(false);
            }
            if self.one(route, Op::Delete { key, version: item.version })? == Reply::Deleted {
                return Ok(true);
            }
            // Somebody touched it between the two: look again.
        }
        Ok(false)
    }

    /// Runs operations that change nothing, again if need be: nothing can be unknown about them.
    pub(crate) fn read(&self, route: Route, ops: &[Op<'_>]) -> Result<Vec<Reply>> {
        let mut failures = 0;
        loop {
            match self.run(route, ops) {
                Ok(replies) => return Ok(replies),
                Err(failure) => {
                    failures += 1;
                    if failures == ATTEMPTS || !failure.sent {
                        return Err(failure.of_read());
                    }
                }
            }
        }
    }

    /// Reads one item.
    pub(crate) fn get(&self, route: Route, key: &Key) -> Result<Option<Item>> {
        match self.read(route, &[Op::Get { key }])?.pop() {
            Some(Reply::Value(item)) => Ok(Some(item)),
            _ => Ok(None),
        }
    }

    /// Runs one operation.
    pub(crate) fn one(&self, route: Route, op: Op<'_>) -> std::result::Result<Reply, Failure> {
        let replies = self.run(route, &[op])?;
        replies.into_iter().next().ok_or_else(|| Failure {
            error: Error::new(ErrorKind::Internal, "The store gave no reply."),
            sent: true,
        })
    }
}

/// Runs a batch, unless this process is a child that was made in the middle of the call, before or
/// meanwhile: then it asks nothing, and is told nothing, in its parent's name.
fn unless_astray<T>(
    run: impl FnOnce() -> std::result::Result<T, Failure>,
) -> std::result::Result<T, Failure> {
    let process = fork::process();
    let astray = || Failure { error: fork::astray(), sent: false };
    if process != fork::generation() {
        return Err(astray());
    }
    let ran = run();
    if process == fork::generation() { ran } else { Err(astray()) }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.inner.store).finish_non_exhaustive()
    }
}
