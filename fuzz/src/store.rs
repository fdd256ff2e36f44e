//! A store that keeps its promises until the input says otherwise.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::store::memcached::{GUARANTEES, Life};
use memlock_core::store::memory::Memory;
use memlock_core::store::{
    Expiry, Failure, Guarantees, Item, Node, Op, Pending, Replies, Reply, Request, Returns, Route,
    Store, Stored,
};
use memlock_core::{Error, ErrorKind};

use super::input::Input;

/// After so many operations the server is gone: there are walks that would end with it only.
const MOST_OPS: usize = 4000;
/// After so many further round trips the caller does not take that for an answer.
const FAR_TOO_MANY: usize = 4000;

/// What may happen to a batch, with the byte that stands for the first of its kind.
const LOSE_REQUEST: u8 = 200;
const LOSE_REPLY: u8 = 210;
const TAMPER: u8 = 230;
const LIE_ABOUT_TIME: u8 = 242;
const PLANT: u8 = 243;

/// Items in memory, behind a wire and beside others that the input commands.
#[derive(Debug)]
pub struct Hostile {
    inner: Memory,
    script: Mutex<Vec<u8>>,
    ops: AtomicUsize,
    late: AtomicUsize,
}

impl Hostile {
    /// The script's bytes are used from the front. An honest store is one with an empty script.
    pub fn new(clock: Arc<dyn Clock>, script: &[u8]) -> Arc<Hostile> {
        let script = Mutex::new(script.to_vec());
        Arc::new(Hostile {
            inner: Memory::like(GUARANTEES, clock),
            script,
            ops: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
        })
    }

    /// Whether a script of these bytes may do more than lose packets.
    pub fn tampers(script: &[u8]) -> bool {
        script.iter().any(|&byte| byte >= TAMPER)
    }

    /// The same items, without what befalls them on the way.
    pub fn inside(&self) -> &Memory {
        &self.inner
    }

    fn run_now(&self, route: Route, ops: &[Op<'_>]) -> Replies {
        let unreachable = |sent| {
            let kind = if sent { ErrorKind::Unknown } else { ErrorKind::Unreachable };
            Err(Failure { error: Error::new(kind, "The packet was lost."), sent })
        };
        if self.ops.fetch_add(ops.len(), Ordering::Relaxed) > MOST_OPS {
            let late = self.late.fetch_add(1, Ordering::Relaxed);
            assert!(late < FAR_TOO_MANY, "somebody asks for ever");
            return unreachable(false);
        }
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let mut input = Input(&script);
        let what = input.byte();
        let chosen = usize::from(input.byte()) % ops.len().max(1);
        let result = match what {
            LOSE_REQUEST..LOSE_REPLY => unreachable(false),
            LOSE_REPLY..TAMPER => self.inner.run(route, ops).and_then(|_| unreachable(true)),
            TAMPER..PLANT => self.inner.run(route, ops).map(|mut replies| {
                if let (Some(reply), Some(op)) = (replies.get_mut(chosen), ops.get(chosen)) {
                    *reply = another(op, &mut input);
                }
                replies
            }),
            PLANT.. => {
                let value = input.chunk();
                if let Some(op) = ops.get(chosen) {
                    self.plant(route, op, value);
                }
                self.inner.run(route, ops)
            }
            _ => self.inner.run(route, ops),
        };
        *script = input.0.to_vec();
        result
    }

    fn plant(&self, route: Route, op: &Op<'_>, value: &[u8]) {
        let (key, expiry) = (op.key(), Expiry::After(Duration::from_secs(600)));
        let returns = Returns::Nothing;
        let plant = match self.inner.run(route, &[Op::get(key)]).as_deref() {
            Ok([Reply::Value(item)]) => {
                Op::CompareAndSet { key, version: item.version, value, expiry, returns }
            }
            _ => Op::add(key, value, expiry, returns),
        };
        self.inner.run(route, &[plant]).expect("a store in memory");
    }
}

impl Store for Hostile {
    fn send<'a>(&'a self, request: Request<'a>) -> Pending<'a> {
        Pending::ended(self.run_now(request.route, request.ops))
    }

    fn nodes(&self) -> Vec<Node> {
        self.inner.nodes()
    }

    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn time(&self, route: Route) -> Option<Duration> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let mut input = Input(&script);
        if input.byte() != LIE_ABOUT_TIME {
            return self.inner.time(route);
        }
        // A server that was not contacted is not known.
        let time = Some(input.number()).filter(|&time| time > 0).map(Duration::from_secs);
        *script = input.0.to_vec();
        time
    }
}

/// A reply that a server may give to such a command, whatever is true.
fn another(op: &Op<'_>, input: &mut Input<'_>) -> Reply {
    let which = input.byte();
    let stored = |input: &mut Input<'_>| {
        let (life, cas) = (Life { boot: input.number(), pid: input.number() }, input.number());
        Stored { version: life.version(cas), fence: life.fence(cas) }
    };
    match (op, which % 3) {
        (
            Op::Add { returns: Returns::Nothing, .. }
            | Op::CompareAndSet { returns: Returns::Nothing, .. },
            0,
        ) => Reply::Written,
        (Op::Add { .. } | Op::CompareAndSet { .. }, 0) => Reply::Stored(stored(input)),
        (Op::Add { .. }, _) => Reply::Exists,
        (Op::Get { .. }, 0 | 1) => {
            let remaining = (which < 128).then(|| Duration::from_secs(input.number()));
            let Stored { version, fence } = stored(input);
            let (value, version) = (input.chunk().to_vec(), version.with_note(which.into()));
            Reply::Value(Item { value, version, remaining, fence })
        }
        (Op::Delete { .. }, 0) => Reply::Deleted,
        (Op::CompareAndSet { .. } | Op::Delete { .. }, 1) => Reply::VersionMismatch,
        (Op::Append { .. } | Op::Prepend { .. }, 0) => Reply::Written,
        (Op::Increment { .. }, 0 | 1) => Reply::Number(input.number()),
        _ => Reply::Missing,
    }
}
