//! The handle of a semaphore: its record, read and written.

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
use crate::report::{Report, Subject};
use crate::store::{Expiry, Failure, Op, Reply, Returns};
use crate::target::Target;

use super::combine::{Combiner, Memory};
use super::record::Record;
use super::snapshot::Snapshot;

/// A reply that took longer is asked for once more: it is not known when in that time the server's
/// clock was read.
pub(super) const SLOW_LOOK: Duration = Duration::from_secs(1);

/// How long an unused semaphore is stored, unless [`Semaphore::set_up`] says otherwise.
pub(super) const LIFE: Duration = Duration::from_secs(24 * 3600);

/// A semaphore by its name. It can be used from any number of threads at once.
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(super) target: Target,
    pub(super) lease: Lease,
    /// How many permits it is to have; `None`: as many as it has.
    pub(super) permits: Option<u32>,
    /// How many permits it had when it was seen last; 0 before that.
    pub(super) agreed: Arc<AtomicU32>,
    /// What the threads of this process share that use it by this client.
    pub(super) combiner: Arc<ForkLocal<Arc<Combiner>>>,
}

/// The result of writing it.
pub(super) struct Wrote {
    /// Whether it was written; if not, another client was faster.
    pub(super) done: bool,
    /// How many permits are available, if it was.
    pub(super) capacity: u32,
    /// The replies to what was run behind it.
    pub(super) replies: Vec<Reply>,
    /// What it is now, if that was asked for: where no other process seems to be using it, the next
    /// step can build upon that.
    pub(super) after: Option<Snapshot>,
}

impl Semaphore {
    pub(crate) fn new(
        context: Context,
        key: Key,
        permits: Option<u32>,
        lease: Lease,
    ) -> Result<Semaphore> {
        if permits == Some(0) {
            return Err(Error::invalid("A semaphore has at least one permit."));
        }
        Ok(Semaphore {
            target: Target::new(context, key),
            lease,
            permits,
            agreed: Arc::default(),
            combiner: Arc::new(ForkLocal::new()),
        })
    }

    /// The same semaphore, whose permits are held for at most `lease` (1 second to 366 days).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a lease out of range.
    pub fn with_lease(&self, lease: Duration) -> Result<Semaphore> {
        Ok(Semaphore { lease: Lease::new(lease)?, ..self.clone() })
    }

    /// Its name, for people: of a name beyond 200 bytes the server's key.
    pub fn name(&self) -> String {
        self.target.name()
    }

    /// Where it is, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.target.server()
    }

    /// That there is none: [`Answer::NotFound`] with a sentence.
    pub fn report_not_found(&self) -> Report {
        let text = format!(
            "There is no {}: nobody has set it up, it has expired, or it was torn down.",
            self.subject()
        );
        Report::new(Answer::NotFound, text)
    }

    /// Other errors name the semaphore themselves.
    pub(super) fn said(&self, doing: &str, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Invalid | ErrorKind::NotFound => error,
            _ => self.target.said(doing, error),
        }
    }

    /// What sentences are about.
    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject { kind: "semaphore", target: &self.target }
    }

    /// Reads it.
    pub(super) fn inspect(&self) -> Result<Option<Snapshot>> {
        let (mut failures, mut slow) = (0, 0);
        loop {
            let sent = self.target.now();
            match self.target.one(Op::get(&self.target.key)) {
                // A connection may have been made first. An answer that leaves open when the
                // server's clock was read makes leases longer.
                Ok(_) if slow + 1 < crate::context::ATTEMPTS && self.is_long_since(sent) => {
                    slow += 1
                }
                Ok(reply) => return self.note(&reply, sent),
                Err(failure) => {
                    failures += 1;
                    if failures == crate::context::ATTEMPTS || !failure.sent {
                        return Err(failure.of_read());
                    }
                }
            }
        }
    }

    /// Reads it for a holder that is to know how long the server is guaranteed to store what it
    /// holds: see [`Guarantees::kept_until`](crate::store::Guarantees::kept_until).
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

    /// What a reply says that was asked for at `sent`.
    pub(super) fn note(&self, reply: &Reply, sent: Moment) -> Result<Option<Snapshot>> {
        match reply {
            Reply::Value(item) => {
                Snapshot::read(&self.target, item, sent, self.target.now()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// With how many permits it is set up if there is none; `None`: not by us.
    pub(super) fn number(&self) -> Option<u32> {
        let known = Some(self.agreed.load(Ordering::Relaxed)).filter(|&known| known != 0);
        self.permits.map(|permits| known.unwrap_or(permits))
    }

    pub(super) fn not_found(&self) -> Error {
        Error::new(ErrorKind::NotFound, self.report_not_found().to_string())
    }

    /// Adds the item, with all permits available, and reads it, if it could be read in the same
    /// round trip.
    pub(super) fn create(&self, token: Token, life: u64, permits: u32) -> Result<Option<Snapshot>> {
        let Some(now) = self.target.context.time(self.target.route) else { return Ok(None) };
        // What the server's clock shows is known for sure once it has been read.
        let now = whole_seconds(now);
        let record = Record::new(token, permits, life, now.saturating_add(life));
        let value = record.encode();
        let key = &self.target.key;
        let expiry = Expiry::At(Duration::from_secs(record.expires));
        let sent = self.target.now();
        match self.target.context.run(
            self.target.route,
            &[Op::Add { key, value: &value, expiry, returns: Returns::Nothing }, Op::get(key)],
        ) {
            Ok(_) if self.is_long_since(sent) => Ok(None),
            Ok(replies) => replies.get(1).map_or(Ok(None), |reply| self.note(reply, sent)),
            Err(failure) if failure.sent && failure.error.is_outage() => Ok(None),
            Err(failure) => Err(failure.error),
        }
    }

    /// Writes it over the version that was seen, past the combiner.
    pub(super) fn write(&self, snapshot: Snapshot) -> std::result::Result<Wrote, Failure> {
        let written = (snapshot.record.token, snapshot.record.serial);
        let lonely = self.combiner().memory(|memory| memory.written == Some(written));
        let wrote = self.put(snapshot, &[], lonely)?;
        if wrote.done {
            self.remember_written((written.0, written.1.wrapping_add(1)));
        }
        Ok(wrote)
    }

    /// We have written it past the combiner.
    pub(super) fn remember_written(&self, written: (Token, u64)) {
        self.combiner()
            .memory(|memory| *memory = Memory { written: Some(written), snapshot: None });
    }

    /// Writes it over the version that was seen, and runs `more` behind it in the same packet.
    /// `lonely`: no other process had written it before it was seen, so that it pays to read what
    /// it becomes, and to build upon that.
    pub(super) fn put(
        &self,
        mut snapshot: Snapshot,
        more: &[Op<'_>],
        lonely: bool,
    ) -> std::result::Result<Wrote, Failure> {
        // Of what is remembered, the time has gone on.
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
        let capacity = snapshot.record.capacity(snapshot.now);
        let last = if lonely { replies.next_back() } else { None };
        let after = match last {
            // What was written need not be read again.
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

    /// Whether the number of permits is the one that we know of.
    pub(super) fn agree(&self, number: u32) -> Result<()> {
        match (self.agreed.swap(number, Ordering::Relaxed), self.permits) {
            (0, Some(wanted)) if wanted != number => {
                self.agreed.store(0, Ordering::Relaxed);
                Err(Error::invalid(format!(
                    "{} has {number} permits, and was opened with {wanted}: open it with {number}, or resize it.",
                    self.target.key
                )))
            }
            _ => Ok(()),
        }
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
