//! The memory store: the same promises within one process, for tests and for programs that need no
//! server.
//!
//! `memory://name` is shared by all clients of the process that use the same name, and exists as
//! long as one of them. A forked child starts with an empty store.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::url::Url;
use super::{
    ClockOf, Epoch, Expiry, Failure, FencesRise, Guarantees, Item, Node, Op, Order, Pending, Reply,
    Request, Returns, Route, Scope, Store, Stored, Survives, Version,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::fork::ForkLocal;
use crate::name::Key;

const GUARANTEES: Guarantees = Guarantees {
    scope: Scope::Process,
    clock_error: Duration::ZERO,
    clock_step: Duration::from_nanos(1),
    suspicious_delay: None,
    clock: ClockOf::Host,
    survives: Survives::Nothing,
    evicts: false,
    fences_rise: FencesRise::WhileClocksDo,
    order: Order::Sent,
    guard: None,
    longest_key: 250,
    longest_value: usize::MAX,
};

/// Items in this process's memory.
#[derive(Debug)]
pub struct Memory {
    /// The name of the store in this process.
    name: String,
    clock: Arc<dyn Clock>,
    boot: u64,
    guarantees: Guarantees,
    items: ForkLocal<Mutex<Items>>,
}

#[derive(Debug, Default)]
struct Items {
    items: HashMap<Key, StoredItem>,
    /// The last number given to a stored item.
    last: u64,
    /// The number of items after the last sweep. At about twice that, expired items are swept.
    swept: usize,
}

#[derive(Debug)]
struct StoredItem {
    value: Vec<u8>,
    number: u64,
    /// `None`: never.
    expires: Option<Moment>,
}

type Registry = Mutex<HashMap<String, Weak<Memory>>>;

static REGISTRY: ForkLocal<Registry> = ForkLocal::new();

impl Memory {
    /// A store that no other client can name.
    pub fn new(clock: Arc<dyn Clock>) -> Memory {
        Memory::like(GUARANTEES, clock)
    }

    /// The same, with the clock and the guarantees of another store: for tests.
    pub fn like(guarantees: Guarantees, clock: Arc<dyn Clock>) -> Memory {
        Memory {
            name: String::new(),
            boot: clock.unix_seconds(),
            clock,
            guarantees,
            items: ForkLocal::new(),
        }
    }

    /// When an item that is stored now expires.
    fn expires(&self, now: Moment, expiry: Expiry) -> Option<Moment> {
        match expiry {
            Expiry::After(lease) => Some(now + self.guarantees.covering(lease)),
            Expiry::Unchanged(left) => left.map(|left| now + left),
            Expiry::At(time) => Some(Moment::from_boot(time)),
            Expiry::Never => None,
        }
    }

    /// The store with the URL's name in this process.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let name = url.authority()?;
        if name.is_empty() {
            return Err(Error::config("The URL memory:// has no name: write memory://name."));
        }
        let mut registry = REGISTRY.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = registry.get(name).and_then(Weak::upgrade) {
            return Ok(store);
        }
        registry.retain(|_, store| store.strong_count() > 0);
        let store = Arc::new(Memory { name: name.to_owned(), ..Memory::new(Arc::clone(clock)) });
        registry.insert(name.to_owned(), Arc::downgrade(&store));
        Ok(store)
    }

    fn epoch(&self) -> Epoch {
        Epoch::new(self.boot, 0)
    }

    fn version(&self, number: u64) -> Version {
        Version::new(self.epoch(), number)
    }

    /// Rises with each number, and from one store of this name to the next.
    fn fence(&self, number: u64) -> u64 {
        self.boot.saturating_mul(1_000_000).saturating_add(number)
    }

    fn apply(&self, items: &mut Items, now: Moment, op: &Op<'_>) -> Result<Reply> {
        if !op.is_of(self.epoch()) {
            return Ok(Reply::VersionMismatch);
        }
        let found = items.live(op.key(), now);
        let same =
            |version: Version| found.is_some_and(|kept| self.version(kept.number) == version);
        Ok(match *op {
            Op::Add { .. } if found.is_some() => Reply::Exists,
            Op::Add { key, value, expiry, returns, .. } => {
                self.stored(items.store(key, value.to_vec(), self.expires(now, expiry)), returns)
            }
            Op::Get { .. } => match found {
                Some(kept) => Reply::Value(Item {
                    value: kept.value.clone(),
                    version: self.version(kept.number),
                    remaining: kept.expires.map(|at| at.since(now)),
                    fence: self.fence(kept.number),
                }),
                None => Reply::Missing,
            },
            Op::CompareAndSet { key, version, value, expiry, returns } if same(version) => {
                let expires = match (expiry, found) {
                    (Expiry::Unchanged(_), Some(kept)) => kept.expires,
                    _ => self.expires(now, expiry),
                };
                self.stored(items.store(key, value.to_vec(), expires), returns)
            }
            Op::Delete { key, version } if same(version) => {
                items.items.remove(key);
                Reply::Deleted
            }
            Op::CompareAndSet { .. } | Op::Delete { .. } if found.is_some() => {
                Reply::VersionMismatch
            }
            Op::Append { key, value } | Op::Prepend { key, value } if found.is_some() => {
                let Some(StoredItem { value: old, expires, .. }) = found else {
                    return Ok(Reply::Missing);
                };
                let appends = matches!(op, Op::Append { .. });
                let whole = if appends { [old, value].concat() } else { [value, old].concat() };
                let expires = *expires;
                items.store(key, whole, expires);
                Reply::Written
            }
            Op::Increment { key, by, initial } => match (found, initial) {
                (Some(kept), _) => {
                    let number =
                        std::str::from_utf8(&kept.value).ok().and_then(|text| text.parse().ok());
                    let Some(number) = number.map(|number: u64| number.wrapping_add(by)) else {
                        return Err(Error::protocol(format!(
                            "The item {key} is not a number and cannot be counted."
                        )));
                    };
                    let expires = kept.expires;
                    items.store(key, number.to_string().into_bytes(), expires);
                    Reply::Number(number)
                }
                (None, Some((first, expiry))) => {
                    items.store(key, first.to_string().into_bytes(), self.expires(now, expiry));
                    Reply::Number(first)
                }
                (None, None) => Reply::Missing,
            },
            Op::CompareAndSet { .. }
            | Op::Delete { .. }
            | Op::Append { .. }
            | Op::Prepend { .. } => Reply::Missing,
        })
    }

    fn stored(&self, number: u64, returns: Returns) -> Reply {
        match returns {
            Returns::Nothing => Reply::Written,
            Returns::Version | Returns::Fence => {
                Reply::Stored(Stored { version: self.version(number), fence: self.fence(number) })
            }
        }
    }
}

impl Store for Memory {
    fn send<'a>(&'a self, Request { ops, .. }: Request<'a>) -> Pending<'a> {
        let mut items = self.items.get().lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let replies =
            ops.iter().map(|op| self.apply(&mut items, now, op)).collect::<Result<Vec<_>>>();
        Pending::ended(replies.map_err(|error| Failure { error, sent: ops.len() > 1 }))
    }

    fn nodes(&self) -> Vec<Node> {
        vec![Node {
            name: format!("memory://{}", self.name),
            title: "this process's memory".to_owned(),
            is_container: true,
            timeout: Duration::MAX,
        }]
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn time(&self, _route: Route) -> Option<Duration> {
        Some(self.clock.now().since_boot())
    }

    /// All users are in this process.
    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        Some(Ipv4Addr::LOCALHOST.into())
    }
}

impl Items {
    fn live(&mut self, key: &Key, now: Moment) -> Option<&StoredItem> {
        if self.items.len() > 2 * self.swept + 64 {
            self.items.retain(|_, kept| kept.is_live(now));
            self.swept = self.items.len();
        }
        self.items.get(key).filter(|kept| kept.is_live(now))
    }

    fn store(&mut self, key: &Key, value: Vec<u8>, expires: Option<Moment>) -> u64 {
        self.last += 1;
        let number = self.last;
        self.items.insert(key.clone(), StoredItem { value, number, expires });
        number
    }
}

impl StoredItem {
    fn is_live(&self, now: Moment) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}
