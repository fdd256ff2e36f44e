//! One call of a history.

use std::fmt;
use std::time::Duration;

use memlock_core::Answer;

/// From one moment of the boot clock to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
}

impl Span {
    /// Whether the two have a moment in common.
    pub fn meets(self, other: Span) -> bool {
        self.from <= other.to && other.from <= self.to
    }

    /// The length of what the two have in common.
    pub fn shared(self, other: Span) -> Duration {
        self.to.min(other.to).saturating_sub(self.from.max(other.from))
    }
}

/// One thread of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    /// The number that the test gave the process.
    pub process: usize,
    /// The number that the process gave the thread.
    pub thread: u64,
}

/// What is called, with what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "what is asked for has the names of the API")]
pub enum Op {
    /// Acquires a mutex.
    Lock { lease: Duration, wait: Option<Duration> },
    /// Extends the lease of a mutex.
    Extend { lease: Duration },
    /// Releases a mutex.
    Unlock,
    /// Acquires permits of a semaphore.
    Acquire { lease: Duration, wait: Option<Duration>, permits: u32, priority: i64 },
    /// Extends the lease of permits.
    Prolong { lease: Duration },
    /// Releases permits.
    Release,
    /// Sets up the session of a distinct list, or joins it.
    SetUp,
    /// Inserts into a distinct list.
    Insert {
        /// The key, as a number.
        key: u64,
    },
    /// Not a call: the program is in its critical section.
    Inside,
}

/// One call, and its result.
#[derive(Clone)]
pub struct Call {
    /// The caller.
    pub who: Who,
    /// What is called.
    pub op: Op,
    /// The name of the lock, the semaphore or the session.
    pub name: String,
    /// Just before the call.
    pub began: Duration,
    /// Just before another thread cancelled the wait.
    pub cancelled: Option<Duration>,
    /// None: it was under way when the history stopped.
    pub done: Option<Done>,
}

/// The result of a call.
#[derive(Clone)]
pub struct Done {
    /// Just after the call.
    pub at: Duration,
    /// What it says.
    pub answer: Answer,
    /// The first number beside the answer.
    pub first: u64,
    /// The second number beside the answer.
    pub second: u64,
    /// The sentence of an error.
    pub said: String,
}

/// In one line, as findings are reported.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { who: Who { process, thread }, op, name, began, cancelled, done } = self;
        write!(f, "[{process}.{thread} {op:?} {name} from {:.6}", began.as_secs_f64())?;
        if let Some(cancelled) = cancelled {
            write!(f, " cancelled {:.6}", cancelled.as_secs_f64())?;
        }
        match done {
            None => write!(f, " on]"),
            Some(Done { at, answer, first, second, said }) => {
                write!(f, " to {:.6}: {answer:?} {first} {second} {said}]", at.as_secs_f64())
            }
        }
    }
}

impl Call {
    /// The answer, if the call has returned.
    pub fn answer(&self) -> Option<Answer> {
        self.done.as_ref().map(|done| done.answer)
    }

    /// When it ended; for one that did not, the end of all.
    pub fn ended(&self) -> Duration {
        self.done.as_ref().map_or(Duration::MAX, |done| done.at)
    }

    /// The limit of its wait; `None` is a wait without a limit.
    pub fn limit(&self) -> Option<Duration> {
        match self.op {
            Op::Lock { wait, .. } | Op::Acquire { wait, .. } => wait,
            _ => Some(Duration::ZERO),
        }
    }

    /// When its wait is to end at the latest: at its limit, or once it is cancelled.
    pub fn due(&self) -> Option<Duration> {
        let limit = self.limit().map(|limit| self.began.saturating_add(limit));
        limit.into_iter().chain(self.cancelled).min()
    }

    /// The lease that it asked for.
    pub fn lease(&self) -> Duration {
        match self.op {
            Op::Lock { lease, .. }
            | Op::Extend { lease }
            | Op::Acquire { lease, .. }
            | Op::Prolong { lease } => lease,
            _ => Duration::ZERO,
        }
    }

    /// From its beginning to its end.
    pub fn span(&self) -> Span {
        Span { from: self.began, to: self.ended() }
    }
}

/// The calls of each thread in their order, one thread after the other.
pub fn by_thread(calls: &[Call]) -> Vec<&Call> {
    let mut calls: Vec<&Call> = calls.iter().collect();
    calls.sort_by_key(|call| (call.who, call.began));
    calls
}
