//! The semaphore: one item on the server, `semaphore:<name>`, that says how many permits there are
//! and who holds them.
//!
//! | a permit | what is true | who may move it on, and how |
//! | --- | --- | --- |
//! | in no holder's line | it is available | anybody, by writing a line with a fresh token over the version that was read |
//! | in our line, before our deadline | we hold it | we, by writing the record without our line, or with a later end |
//! | in our line, past our deadline | nobody holds it | we, as above, as long as the line is there |
//! | in a line whose end the server's clock has passed | it is available | anybody: whoever takes permits drops such lines |
//! | there is no item | all are available, if we know how many there are | anybody who does, by adding the item |
//!
//! **The record is only ever replaced by compare-and-swap**, so that all or none of several permits
//! are taken, and no two clients take the same one: the other's version is no longer the one it
//! read. A semaphore that is used by one process at a time costs it one round trip to acquire and
//! one to release, because the reply to each write comes with what it became; where others have
//! written meanwhile, two each. None of that depends on how many permits there are.
//!
//! **Ends are in the server's seconds**, which every read of the item tells (see `record`).
//! Nobody's clock is compared with another's: a holder counts its lease on its own boot clock from
//! before it asked for the server's time, and stops believing before the server's clock shows the
//! end.
//!
//! **Lost replies.** The record is read back: it has a line with our token, or it has another
//! version, so that what we sent can never be carried out any more, or we write the same over the
//! same version again, of which only one can succeed. If nothing can be read either, the outcome is
//! unknown, and the permits are taken back at the next contact.
//!
//! **Why not an item for each permit?** See DESIGN.md: it was measured.
//!
//! **Who comes next.** The queue beside the item is the mutex's, see [`wait`]. Whoever gives
//! permits back rings as many of the first as have room. The first one that wants more than there
//! are is waited for, and nobody behind it is rung; and so that newcomers do not take what it waits
//! for, it writes into the record that it gathers: for five of the server's seconds, and again with
//! each of its looks.
//!
//! Shared semaphores on memcached by compare-and-swap have been described many times; that a
//! holder's permits come back when it dies, and that nobody spins, has not.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::fork::{self, ForkLocal, call_or};
use crate::guard::orphan;
use crate::guard::orphan::Reaper;
use crate::lease::{Lease, Ttl};
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::Token;
use crate::report::{self, Report, SeenHolder, Subject};
use crate::store::{Failure, Op, Reply};
use crate::target::Target;
use crate::wait::entries::Request;
use crate::wait::local::LocalWaiters;
use crate::wait::{self, Wait, Waited};

mod attempt;
mod batch;
mod combine;
mod inspect;
mod lead;
mod leave;
mod manage;
mod member;
mod operation;
mod permit;
pub(crate) mod record;
mod renew;
mod resolve;
mod snapshot;
mod submit;
mod ticket;

use attempt::{Attempt, Patience};
use combine::Combiner;
pub use manage::{Holder, Status};
pub use permit::Permit;
use permit::{reap, wake_next};
use record::Record;
use snapshot::{Refusal, Seen};

/// How a grant is reaped whose reply was lost.
static REAPER: Reaper = Reaper { reap, wake_next };

/// The threads of this process that wait for permits.
fn local_waiters(context: &Context) -> &LocalWaiters<(), Permit> {
    context.extension(LocalWaiters::side_by_side)
}

/// An answer that took longer is asked for once more: nobody knows when in that time the server's
/// clock was read.
const SLOW_LOOK: Duration = Duration::from_secs(1);

/// How long a semaphore that nobody uses is kept, unless [`Semaphore::set_up`] says otherwise.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// A semaphore by its name. It can be used from any number of threads at once.
#[derive(Clone, Debug)]
pub struct Semaphore {
    target: Target,
    lease: Lease,
    /// How many permits it is to have; `None`: as many as it has.
    permits: Option<u32>,
    /// How many permits it had when it was seen last; 0 before that.
    agreed: Arc<AtomicU32>,
    /// What the threads of this process share that use it by this client.
    combiner: Arc<ForkLocal<Arc<Combiner>>>,
}

/// So many permits, for people.
struct Wanted(u32);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("a permit"),
            permits => write!(f, "{permits} permits"),
        }
    }
}

/// What this process remembers of it, to save looks.
#[derive(Debug, Default)]
struct Memory {
    /// What we wrote last: which semaphore it was, and how often it had been written.
    written: Option<(Token, u64)>,
    /// What it became then, if nobody else was using it.
    seen: Option<Seen>,
}

/// What came of writing it.
struct Wrote {
    /// Whether it was written; if not, somebody else was faster.
    done: bool,
    /// How many permits are available, if it was.
    capacity: u32,
    /// The replies to what was run behind it.
    replies: Vec<Reply>,
    /// What it is now, if that was asked for: where nobody else seems to be using it, the next step
    /// can build upon that.
    after: Option<Seen>,
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

    /// Waits for one permit, for as long as it takes.
    ///
    /// # Errors
    /// See [`Semaphore::acquire_with`]; and [`ErrorKind::Interrupted`] when
    /// [`Client::cancel_waits`](crate::Client::cancel_waits) ended the wait.
    pub fn acquire(&self) -> Result<Permit> {
        let acquired = self.acquire_or_report(Request::default(), &Wait::FOREVER)?;
        acquired.map_err(|report| Error::new(ErrorKind::Interrupted, report.to_string()))
    }

    /// Tries once to take one permit; `None` when none is available, or all that are are being
    /// gathered by a waiter for several.
    ///
    /// # Errors
    /// See [`Semaphore::acquire_with`].
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        Ok(self.acquire_with(Request::default(), &Wait::NEVER)?.done())
    }

    /// Waits at most `limit` for one permit; `None` when it passed.
    ///
    /// # Errors
    /// See [`Semaphore::acquire_with`].
    pub fn acquire_for(&self, limit: Duration) -> Result<Option<Permit>> {
        Ok(self.acquire_with(Request::default(), &Wait::at_most(limit))?.done())
    }

    /// Waits as `wait` says for what `request` says: several permits are taken together or not at
    /// all, and waiters of higher priority come first. Where they are available this takes one or
    /// two round trips.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when no permits are asked for, or more than there are; and when there
    /// is a semaphore by this name with another number of permits than this one was opened with.
    /// [`ErrorKind::NotFound`] when it was opened without a number, and nobody has set it up.
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] and [`ErrorKind::Protocol`] as for
    /// [`Mutex::lock_with`](crate::Mutex::lock_with).
    pub fn acquire_with(&self, request: Request, wait: &Wait<'_>) -> Result<Waited<Permit>> {
        self.wait_for(request, wait, &Cell::default())
    }

    /// As [`Semaphore::acquire_with`], with a sentence where nothing is acquired: which semaphore
    /// and server, how many permits were available, and who was seen to hold the others.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_with`].
    pub fn acquire_or_report(
        &self,
        request: Request,
        wait: &Wait<'_>,
    ) -> Result<std::result::Result<Permit, Report>> {
        let seen = Cell::default();
        match self.wait_for(request, wait, &seen) {
            Ok(Waited::Done(permit)) => Ok(Ok(permit)),
            Ok(Waited::Busy) => Ok(Err(self.refused(Answer::Busy, request, wait, seen.take()))),
            Ok(Waited::TimedOut) => {
                Ok(Err(self.refused(Answer::TimedOut, request, wait, seen.take())))
            }
            Ok(Waited::Interrupted) => {
                Ok(Err(self.refused(Answer::Interrupted, request, wait, seen.take())))
            }
            Err(error) => Err(error),
        }
    }

    fn refused(
        &self,
        answer: Answer,
        request: Request,
        wait: &Wait<'_>,
        seen: Option<Refusal>,
    ) -> Report {
        let (subject, wanted) = (self.subject(), Wanted(request.permits));
        let unknown = SeenHolder::Unknown;
        let holder = seen.as_ref().map_or(&unknown, |seen| &seen.holder);
        let busy = || match &seen {
            Some(Refusal { available, permits: all, .. }) if *available < request.permits => {
                let verb = if request.permits == 1 { "was" } else { "were" };
                format!(
                    "The {subject} has {available} of {all} permits available, and {wanted} {verb} asked for"
                )
            }
            Some(_) => {
                format!(
                    "The permits of the {subject} that are available are reserved for another waiter"
                )
            }
            None => format!("The {subject} has not {wanted} available"),
        };
        report::refused(answer, wait, format_args!("{wanted} of the {subject}"), busy, holder)
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
    fn said(&self, doing: &str, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Invalid | ErrorKind::NotFound => error,
            _ => self.target.said(doing, error),
        }
    }

    /// What sentences are about.
    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject { kind: "semaphore", target: &self.target }
    }

    /// `seen` becomes how it was when it was refused the last time, if it was.
    fn wait_for(
        &self,
        request: Request,
        wait: &Wait<'_>,
        seen: &Cell<Option<Refusal>>,
    ) -> Result<Waited<Permit>> {
        call_or(Waited::Interrupted, || {
            if request.permits == 0 {
                return Err(Error::invalid("No permits were asked for: ask for at least one."));
            }
            let process = fork::generation();
            let patience = Patience::of(wait, self.target.context.clock());
            let mut attempt = Attempt::new(self, request, patience, seen)?;
            let local = local_waiters(&self.target.context);
            let waited = wait::wait_for(&mut attempt, wait, &self.target, local);
            if let Some(until) = attempt.orphan_until()
                && !matches!(waited, Ok(Waited::Done(_)))
                && fork::generation() == process
            {
                orphan::remember(&self.target, &REAPER, attempt.token(), until);
            }
            waited.map_err(|error| match error.kind() {
                ErrorKind::Unreachable if attempt.may_have_left_something() => {
                    self.said("Acquiring", Error::unsettled(Some(error), "semaphore"))
                }
                _ => self.said("Acquiring", error),
            })
        })
    }

    /// Reads it.
    fn look(&self) -> Result<Option<Seen>> {
        let (mut failures, mut slow) = (0, 0);
        loop {
            let sent = self.target.now();
            match self.target.one(Op::Get { key: &self.target.key }) {
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

    /// Reads it for a holder who is to know for how long the server certainly keeps what it holds:
    /// see [`lease::kept_until`](crate::lease::kept_until).
    fn look_closely(&self) -> Result<Option<Seen>> {
        let seen = self.look()?;
        let Some(first) = seen.as_ref().filter(|seen| seen.is_slow()).map(|seen| seen.sent) else {
            return Ok(seen);
        };
        Ok(self.look()?.map(|seen| Seen { first: Some(first), ..seen }))
    }

    fn is_long_since(&self, sent: Moment) -> bool {
        self.target.now().since(sent) > SLOW_LOOK
    }

    /// What a reply says that was asked for at `sent`.
    fn note(&self, reply: &Reply, sent: Moment) -> Result<Option<Seen>> {
        match reply {
            Reply::Value(item) => {
                Seen::read(&self.target.key, item, sent, self.target.now()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// With how many permits it is set up if there is none; `None`: not by us.
    fn number(&self) -> Option<u32> {
        let known = Some(self.agreed.load(Ordering::Relaxed)).filter(|&known| known != 0);
        self.permits.map(|permits| known.unwrap_or(permits))
    }

    fn not_found(&self) -> Error {
        Error::new(ErrorKind::NotFound, self.report_not_found().to_string())
    }

    /// Adds the item, with nobody holding any permit, and reads it, if it could be read in the same
    /// round trip.
    fn create(&self, token: Token, life: u64, permits: u32) -> Result<Option<Seen>> {
        let Some(now) = self.target.context.time(self.target.route) else { return Ok(None) };
        // What the server's clock shows is known for sure once it has been read.
        let record = Record::new(token, permits, life, now.saturating_add(life));
        let value = record.encode();
        let key = &self.target.key;
        let ttl = Ttl::Until(record.expires);
        let sent = self.target.now();
        match self.target.context.run(
            self.target.route,
            &[Op::Put { key, version: None, flags: 0, value: &value, ttl }, Op::Get { key }],
        ) {
            Ok(_) if self.is_long_since(sent) => Ok(None),
            Ok(replies) => replies.get(1).map_or(Ok(None), |reply| self.note(reply, sent)),
            Err(failure) if failure.sent && failure.error.is_outage() => Ok(None),
            Err(failure) => Err(failure.error),
        }
    }

    /// Writes it over the version that was seen, past the combiner.
    fn write(&self, seen: Seen) -> std::result::Result<Wrote, Failure> {
        let written = (seen.record.token, seen.record.serial);
        let lonely = self.combiner().memory(|memory| memory.written == Some(written));
        let wrote = self.put(seen, &[], lonely)?;
        if wrote.done {
            self.remember_written((written.0, written.1.wrapping_add(1)));
        }
        Ok(wrote)
    }

    /// We have written it past the combiner.
    fn remember_written(&self, written: (Token, u64)) {
        self.combiner().memory(|memory| *memory = Memory { written: Some(written), seen: None });
    }

    /// Writes it over the version that was seen, and runs `more` behind it in the same packet.
    /// `lonely`: nobody but this process had written it before it was seen, so that it pays to read
    /// what it becomes, and to build upon that.
    fn put(
        &self,
        mut seen: Seen,
        more: &[Op<'_>],
        lonely: bool,
    ) -> std::result::Result<Wrote, Failure> {
        // Of what is remembered, the time has gone on.
        let passed = self.target.now().since(seen.sent).as_secs();
        seen.record.touch(seen.now.saturating_add(passed));
        let value = seen.record.encode();
        let relative = mutation::has(Mutation::RelativeExpiry);
        let ttl =
            if relative { Ttl::For(seen.record.life) } else { Ttl::Until(seen.record.expires) };
        let key = &self.target.key;
        let put = Op::Put { key, version: Some(seen.version), flags: 0, value: &value, ttl };
        let look = lonely.then_some(Op::Get { key });
        let ops: Vec<Op<'_>> =
            std::iter::once(put).chain(more.iter().copied()).chain(look).collect();
        let sent = self.target.now();
        let mut replies = self.target.run(&ops)?.into_iter();
        let done = replies.next() == Some(Reply::Written);
        let capacity = seen.record.capacity(seen.now);
        let last = if lonely { replies.next_back() } else { None };
        let after = match last {
            // What was written need not be read again.
            Some(Reply::Value(item)) if item.value == value => {
                Seen::again(seen.record, &item, sent, self.target.now())
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
    fn agree(&self, number: u32) -> Result<()> {
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

    fn forget(&self) {
        self.agreed.store(0, Ordering::Relaxed);
        self.combiner().memory(|memory| *memory = Memory::default());
    }

    fn combiner(&self) -> &Combiner {
        match self.combiner.get_or_try_init(|| {
            Ok::<_, Infallible>(Combiner::of(&self.target.context, &self.target.key))
        }) {
            Ok(combiner) => combiner,
            Err(never) => match never {},
        }
    }
}
