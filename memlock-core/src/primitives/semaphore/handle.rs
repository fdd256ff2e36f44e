//! The handle of a semaphore: reading and writing its record.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::{Moment, whole_seconds};
use crate::context::Context;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::fork::ForkLocal;
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::Token;
use crate::primitives::set_up::SetUp;
use crate::report::{self, Report};
use crate::store::{Expiry, Failure, Op, Reply, Returns};
use crate::subject::Subject;
use crate::target::{ATTEMPTS, Target};

use super::combine::{Combiner, Memory};
use super::mismatch::Mismatch;
use super::record::Record;
use super::snapshot::Snapshot;

/// A reply that took longer is requested again: it is not known when in that time the server's
/// clock was read.
pub(super) const SLOW_LOOK: Duration = Duration::from_secs(1);

/// How long an unused semaphore is stored, unless [`Semaphore::set_up`] says otherwise.
pub(super) const LIFE: Duration = Duration::from_secs(24 * 3600);

/// A semaphore, identified by its name. The handle can be used from any number of threads at once.
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(super) target: Target,
    pub(super) lease: Lease,
    /// The number of permits that the handle was opened with; `None`: any number.
    pub(super) permits: Option<u32>,
    /// What to do if the semaphore has another number.
    pub(super) mismatch: Mismatch,
    /// The number of permits at the last read; 0 before the first one.
    pub(super) agreed: Arc<AtomicU32>,
    /// Shared by the threads of this process that use the semaphore through this client.
    pub(super) combiner: Arc<ForkLocal<Arc<Combiner>>>,
}

/// The result of a write.
pub(super) struct Wrote {
    /// Whether the record was written; if not, another client was faster.
    pub(super) done: bool,
    /// How many permits are available, if the record was written.
    pub(super) capacity: u32,
    /// The replies to the operations that followed the write.
    pub(super) replies: Vec<Reply>,
    /// The record after the write, if it was requested: if no other process seems to be using the
    /// semaphore, the next step can build on it.
    pub(super) after: Option<Snapshot>,
}

impl Semaphore {
    pub(crate) fn new(
        context: Context,
        key: Key,
        permits: Option<u32>,
        lease: Duration,
    ) -> Result<Semaphore> {
        let target = Target::new(context, "semaphore", key);
        if permits == Some(0) {
            let error = Error::invalid("A semaphore has at least one permit.");
            return Err(target.said("Opening", error));
        }
        Ok(Semaphore {
            lease: target.lease("Opening", lease)?,
            target,
            permits,
            mismatch: Mismatch::default(),
            agreed: Arc::default(),
            combiner: Arc::new(ForkLocal::new()),
        })
    }

    /// The same semaphore, with permits that are held for at most `lease` (1 second to 366 days).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a lease out of range.
    pub fn with_lease(&self, lease: Duration) -> Result<Semaphore> {
        let lease = self.target.lease("Opening", lease)?;
        Ok(Semaphore { lease, ..self.clone() })
    }

    /// The semaphore's name, for people; the server's key if the name has more than 200 bytes.
    pub fn name(&self) -> String {
        self.target.name()
    }

    /// The semaphore's server, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.target.server()
    }

    /// Reports that there is no such semaphore: [`Answer::NotFound`] with a sentence.
    pub fn report_not_found(&self) -> Report {
        report::not_set_up(&self.target)
    }

    /// Reports the result of a set-up: [`Answer::Exists`] with a sentence that names the semaphore
    /// and the server.
    pub fn report_set_up(&self, set_up: SetUp) -> Report {
        match set_up {
            SetUp::Created => Answer::Ok.into(),
            SetUp::Joined => {
                let mismatch =
                    self.report_mismatch().map_or_else(String::new, |text| " ".to_owned() + &text);
                Report::naming(self.subject(), Answer::Exists, |subject| {
                    format!("The {subject} was already set up.{mismatch}")
                })
            }
        }
    }

    pub(super) fn said(&self, doing: &str, error: Error) -> Error {
        self.target.said(doing, error)
    }

    /// The semaphore, as errors and reports name it.
    pub fn subject(&self) -> Subject {
        self.target.subject()
    }

    /// Reads the record.
    pub(super) fn inspect(&self) -> Result<Option<Snapshot>> {
        let (mut failures, mut slow) = (0, 0);
        loop {
            let sent = self.target.now();
            match self.target.one(Op::get(&self.target.key)) {
                // A connection may have been opened first. A reply that leaves open when the
                // server's clock was read makes leases longer.
                Ok(_) if slow + 1 < ATTEMPTS && self.is_long_since(sent) => slow += 1,
                Ok(reply) => return self.note(&reply, sent),
                Err(failure) => {
                    failures += 1;
                    if failures == ATTEMPTS || !failure.sent {
                        return Err(failure.of_read());
                    }
                }
            }
        }
    }

    /// Reads the record for a holder that has to know how long the server is guaranteed to store
    /// its permits: see [`Guarantees::kept_until`](crate::store::Guarantees::kept_until).
    pub(super) fn inspect_closely(&self) -> Result<Option<Snapshot>> {
        let snapshot = self.inspect()?;
        let Some(first) =
            snapshot.as_ref().filter(|snapshot| snapshot.is_slow()).map(|snapshot| snapshot.sent)
        else {
            return Ok(snapshot);
        };
        Ok(self.inspect()?.map(|snapshot| Snapshot { first: Some(first), ..snapshot }))
    }

    pub(super) fn is_long_since(&self, sent: Moment) -> bool {
        self.target.now().since(sent) > SLOW_LOOK
    }

    /// Parses a reply to a read that was sent at `sent`.
    pub(super) fn note(&self, reply: &Reply, sent: Moment) -> Result<Option<Snapshot>> {
        match reply {
            Reply::Value(item) => {
                Snapshot::read(&self.target, item, sent, self.target.now()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// With how many permits to set the semaphore up if there is none; `None`: this handle does not
    /// set it up.
    pub(super) fn number(&self) -> Option<u32> {
        let known = Some(self.agreed.load(Ordering::Relaxed)).filter(|&known| known != 0);
        self.permits.map(|permits| known.unwrap_or(permits))
    }

    pub(super) fn not_found(&self) -> Error {
        self.report_not_found().into_error(ErrorKind::NotFound)
    }

    /// Adds the item, with all permits available. Returns the record, if it could be read in the
    /// same round trip.
    pub(super) fn create(&self, token: Token, life: u64, permits: u32) -> Result<Option<Snapshot>> {
        let Some(now) = self.target.context.time(self.target.route) else { return Ok(None) };
        // This time is computed; the server's clock is known for sure once the item has been read.
        let now = whole_seconds(now);
        let record = Record::new(token, permits, life, now.saturating_add(life));
        let value = record.encode();
        let key = &self.target.key;
        let expiry = Expiry::At(Duration::from_secs(record.expires));
        let sent = self.target.now();
        match self.target.run(&[Op::add(key, &value, expiry, Returns::Nothing), Op::get(key)]) {
            Ok(_) if self.is_long_since(sent) => Ok(None),
            Ok(replies) => replies.get(1).map_or(Ok(None), |reply| self.note(reply, sent)),
            Err(failure) if failure.sent && failure.error.is_outage() => Ok(None),
            Err(failure) => Err(failure.error),
        }
    }

    /// Writes the record over the version that was read, bypassing the combiner.
    pub(super) fn write(&self, snapshot: Snapshot) -> std::result::Result<Wrote, Failure> {
        let written = (snapshot.record.token, snapshot.record.serial);
        let lonely = self.combiner().memory(|memory| memory.written == Some(written));
        let wrote = self.put(snapshot, &[], lonely)?;
        if wrote.done {
            self.remember_written((written.0, written.1.wrapping_add(1)));
        }
        Ok(wrote)
    }

    /// Records that this process has written the record, bypassing the combiner.
    pub(super) fn remember_written(&self, written: (Token, u64)) {
        self.combiner()
            .memory(|memory| *memory = Memory { written: Some(written), snapshot: None });
    }

    /// Writes the record over the version that was read, and runs `more` after it in the same
    /// packet. `lonely`: no other process had written the record before it was read. Reading the
    /// result back then pays off, because the next step can build on it.
    pub(super) fn put(
        &self,
        mut snapshot: Snapshot,
        more: &[Op<'_>],
        lonely: bool,
    ) -> std::result::Result<Wrote, Failure> {
        // If the record is only remembered, the server's clock has advanced since.
        let passed = self.target.now().since(snapshot.sent).as_secs();
        snapshot.record.touch(snapshot.now.saturating_add(passed));
        let value = snapshot.record.encode();
        let relative = mutation::has(Mutation::RelativeExpiry);
        let expiry = if relative {
            Expiry::Unchanged(Some(Duration::from_secs(snapshot.record.life)))
        } else {
            Expiry::At(Duration::from_secs(snapshot.record.expires))
        };
        let key = &self.target.key;
        let (version, returns) = (snapshot.version, Returns::Nothing);
        let put = Op::CompareAndSet { key, version, value: &value, expiry, returns };
        let look = lonely.then_some(Op::get(key));
        let ops: Vec<Op<'_>> =
            std::iter::once(put).chain(more.iter().copied()).chain(look).collect();
        let sent = self.target.now();
        let mut replies = self.target.run(&ops)?.into_iter();
        let done = replies.next() == Some(Reply::Written);
        let capacity = snapshot.capacity(sent);
        let last = if lonely { replies.next_back() } else { None };
        let after = match last {
            // The record that was just written need not be parsed.
            Some(Reply::Value(item)) if item.value == value => {
                Snapshot::again(&self.target, snapshot.record, &item, sent, self.target.now())
            }
            Some(reply) => self.note(&reply, sent).unwrap_or_default(),
            None => None,
        };
        Ok(Wrote {
            done,
            capacity,
            replies: replies.collect(),
            after: after.filter(|after| !after.is_slow()),
        })
    }

    pub(super) fn forget(&self) {
        self.agreed.store(0, Ordering::Relaxed);
        self.combiner().memory(|memory| *memory = Memory::default());
    }

    pub(super) fn combiner(&self) -> &Combiner {
        match self.combiner.get_or_try_init(|| {
            Ok::<_, Infallible>(Combiner::of(&self.target.context, &self.target.key))
        }) {
            Ok(combiner) => combiner,
            Err(never) => match never {},
        }
    }
}
