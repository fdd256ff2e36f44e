//! The memory store: the same promises within one process, for tests and for programs that need no
//! server.
//!
//! `memory://name` is shared by every client of the process that gives the same name, and lives as
//! long as one of them. A forked child starts with an empty one.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::{Failure, Incarnation, Item, Op, Reply, Route, Store, Version};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::fork::ForkLocal;
use crate::lease::Ttl;
use crate::name::Key;

/// Items in this process's memory.
#[derive(Debug)]
pub struct Memory {
    clock: Arc<dyn Clock>,
    boot: u64,
    items: ForkLocal<Mutex<Items>>,
}

#[derive(Debug, Default)]
struct Items {
    items: HashMap<Key, Stored>,
    last_cas: u64,
    /// The number of items after the last sweep: at twice that, the expired ones are swept out.
    swept: usize,
}

#[derive(Debug)]
struct Stored {
    value: Vec<u8>,
    cas: u64,
    flags: u32,
    /// `None`: never.
    expires: Option<Moment>,
}

type Registry = Mutex<HashMap<String, Weak<Memory>>>;

static REGISTRY: ForkLocal<Registry> = ForkLocal::new();

impl Memory {
    /// A store of its own, which nobody else can name.
    pub fn new(clock: Arc<dyn Clock>) -> Memory {
        Memory { boot: clock.unix_seconds(), clock, items: ForkLocal::new() }
    }

    /// The store that this process knows by `name`.
    pub(crate) fn named(name: &str, clock: &Arc<dyn Clock>) -> Result<Arc<Memory>> {
        if name.is_empty() {
            return Err(Error::config("The URL memory:// has no name: write memory://name."));
        }
        let mut registry = REGISTRY.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = registry.get(name).and_then(Weak::upgrade) {
            return Ok(store);
        }
        registry.retain(|_, store| store.strong_count() > 0);
        let store = Arc::new(Memory::new(Arc::clone(clock)));
        registry.insert(name.to_owned(), Arc::downgrade(&store));
        Ok(store)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation { boot: self.boot, pid: 0 }
    }

    fn apply(&self, items: &mut Items, now: Moment, op: &Op<'_>) -> Result<Reply> {
        let version = |cas| Version { incarnation: self.incarnation(), cas };
        Ok(match *op {
            Op::Add { key, value, ttl } => match items.live(key, now) {
                Some(_) => Reply::Exists,
                None => {
                    Reply::Stored(version(items.store(key, value.to_vec(), 0, expiry(now, ttl))))
                }
            },
            Op::Get { key } => match items.live(key, now) {
                Some(stored) => Reply::Value(Item {
                    value: stored.value.clone(),
                    version: version(stored.cas),
                    remaining: stored
                        .expires
                        .map(|at| Duration::from_secs(at.since(now).as_secs() + 1)),
                    flags: stored.flags,
                }),
                None => Reply::Missing,
            },
            Op::CompareAndSet { key, version: wanted, value, ttl } => match items.live(key, now) {
                Some(stored) if version(stored.cas) == wanted => {
                    Reply::Stored(version(items.store(key, value.to_vec(), 0, expiry(now, ttl))))
                }
                Some(_) => Reply::VersionMismatch,
                None => Reply::Missing,
            },
            Op::Put { key, version: wanted, flags, value, ttl } => {
                match (items.live(key, now).map(|stored| version(stored.cas)), wanted) {
                    (Some(_), None) => Reply::Exists,
                    (None, Some(_)) => Reply::Missing,
                    (found, _) if found != wanted => Reply::VersionMismatch,
                    _ => {
                        items.store(key, value.to_vec(), flags, expiry(now, ttl));
                        Reply::Written
                    }
                }
            }
            Op::Delete { key, version: wanted } => match items.live(key, now) {
                Some(stored) if version(stored.cas) == wanted => {
                    items.items.remove(key);
                    Reply::Deleted
                }
                Some(_) => Reply::VersionMismatch,
                None => Reply::Missing,
            },
            Op::Append { key, value } => match items.live(key, now) {
                Some(stored) => {
                    let (whole, expires) = ([&stored.value, value].concat(), stored.expires);
                    let flags = stored.flags;
                    items.store(key, whole, flags, expires);
                    Reply::Written
                }
                None => Reply::Missing,
            },
            Op::Prepend { key, value } => match items.live(key, now) {
                Some(stored) => {
                    let (whole, expires) = ([value, &stored.value].concat(), stored.expires);
                    let flags = stored.flags;
                    items.store(key, whole, flags, expires);
                    Reply::Written
                }
                None => Reply::Missing,
            },
            Op::Increment { key, by, initial } => match (items.live(key, now), initial) {
                (Some(stored), _) => {
                    let number =
                        std::str::from_utf8(&stored.value).ok().and_then(|text| text.parse().ok());
                    let Some(number) = number.map(|number: u64| number.wrapping_add(by)) else {
                        return Err(Error::protocol(format!(
                            "The item {key} is not a number and cannot be counted."
                        )));
                    };
                    let (flags, expires) = (stored.flags, stored.expires);
                    items.store(key, number.to_string().into_bytes(), flags, expires);
                    Reply::Number(number)
                }
                (None, Some((first, ttl))) => {
                    items.store(key, first.to_string().into_bytes(), 0, expiry(now, ttl));
                    Reply::Number(first)
                }
                (None, None) => Reply::Missing,
            },
            Op::Stamp { .. } => Reply::Needless,
        })
    }
}

impl Store for Memory {
    fn run(&self, _route: Route, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure> {
        let mut items = self.items.get().lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let replies =
            ops.iter().map(|op| self.apply(&mut items, now, op)).collect::<Result<Vec<_>>>();
        replies.map_err(|error| Failure { error, sent: ops.len() > 1 })
    }

    fn time(&self, _route: Route) -> Option<u64> {
        Some(self.clock.now().since_boot().as_secs() + 1)
    }

    /// All who use it are in this process.
    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        Some(Ipv4Addr::LOCALHOST.into())
    }
}

impl Items {
    fn live(&mut self, key: &Key, now: Moment) -> Option<&Stored> {
        if self.items.len() > 2 * self.swept + 64 {
            self.items.retain(|_, stored| stored.is_live(now));
            self.swept = self.items.len();
        }
        self.items.get(key).filter(|stored| stored.is_live(now))
    }

    fn store(&mut self, key: &Key, value: Vec<u8>, flags: u32, expires: Option<Moment>) -> u64 {
        self.last_cas += 1;
        let cas = self.last_cas;
        self.items.insert(key.clone(), Stored { value, cas, flags, expires });
        cas
    }
}

impl Stored {
    fn is_live(&self, now: Moment) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}

fn expiry(now: Moment, ttl: Ttl) -> Option<Moment> {
    match ttl {
        Ttl::For(seconds) => Some(now + Duration::from_secs(seconds)),
        Ttl::Until(second) => Some(Moment::from_boot(Duration::from_secs(second))),
        Ttl::Never => None,
    }
}
