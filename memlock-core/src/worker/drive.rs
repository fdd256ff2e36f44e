//! The threads of a client that carry out calls, and what they drive.
//!
//! A client has at most four threads, begun by the first such call and ended a moment after the
//! last one. What concerns one server is carried out by two: one drives acquisitions, side by side by
//! their turns, those that have just begun first; the other carries out what holders ask for, in its
//! order, so that no extension is behind thousands of waits. A server that hangs delays what needs
//! it: a thread waits for it at most once a second, and meanwhile what needs the same server is told
//! that it does not answer.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use super::ahead::Ahead;
use super::reading::{ReadAhead, Reading};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::ForkLocal;
use crate::notify::hub::Hub;
use crate::owner::Identity;
use crate::store::Route;
use crate::sync::{Mutex, MutexGuard};
use crate::thread::{self, Signal};
use crate::wait_id::WaitId;

/// How many groups of servers have threads of their own.
const GROUPS: usize = 2;
/// How long a thread waits for more to do before it ends.
const IDLE: Duration = Duration::from_secs(1);
/// A job that sleeps for so long or longer, and may be late, is woken together with others.
const LONG: Duration = Duration::from_millis(500);
/// The time between such moments.
const TICK: Duration = Duration::from_millis(40);
/// So many jobs may take their turns before the messages are read that have arrived meanwhile.
const TURNS: usize = 8;
/// A server that does not answer is asked again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// What a thread drives.
pub(crate) trait Job: Send {
    /// Goes on until the job has to sleep or is done.
    fn turn(&mut self, at: &Turning<'_>) -> Next;

    /// Whether it is an acquisition, which may wait.
    fn may_wait(&self) -> bool {
        false
    }

    /// What the job reads first if it takes a turn now, as far as that is known.
    fn reading(&self, _now: Moment) -> Option<Reading<'_>> {
        None
    }

    /// Called before that is read, for one of the jobs.
    fn prepare_reading(&self) {}

    /// The ids by which messages to it are recognized.
    fn ids(&self) -> &[WaitId] {
        &[]
    }
}

/// What a job does after a turn.
pub(crate) enum Next {
    /// It sleeps until then, or until it is woken.
    Sleep(Moment),
    /// The same, and it may wake up a little later, together with others, though not after the second
    /// moment.
    SleepRoughly(Moment, Option<Moment>),
    Done,
}

/// The turn of a job.
pub(crate) struct Turning<'a> {
    worker: &'a Worker,
    context: &'a Context,
    number: u64,
    route: Route,
    ahead: Cell<Option<ReadAhead>>,
    /// Whether the server did not answer a moment ago, so that the job sends nothing to it.
    pub(crate) skips: bool,
}

impl Turning<'_> {
    pub(crate) fn context(&self) -> &Context {
        self.context
    }

    /// What was read for this turn.
    pub(crate) fn take_ahead(&self) -> Option<ReadAhead> {
        self.ahead.take()
    }

    /// What receives the messages to this job.
    pub(crate) fn listener(&self) -> Arc<dyn crate::notify::Listener> {
        self.worker.hub(self.context, self.route).of_waiter(self.number)
    }
}

/// The workers of one client.
#[derive(Default)]
struct Workers {
    /// For each group one that drives acquisitions, and one that carries out the other calls.
    all: [Worker; 2 * GROUPS],
}

/// One thread, while it runs.
#[derive(Default)]
struct Worker {
    inbox: Mutex<Inbox>,
    /// There is more to do, for a thread that has nothing.
    more: Signal,
    /// The listener of all waits.
    hub: OnceLock<Arc<Hub>>,
    /// How many jobs have been given to it and are not done.
    open: AtomicUsize,
}

/// A job that was given to the thread, with its number.
type Begun = (u64, Route, Box<dyn Job>);

#[derive(Default)]
struct Inbox {
    jobs: VecDeque<Begun>,
    /// Jobs that are to take a turn.
    woken: Vec<u64>,
    last_number: u64,
    runs: bool,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.woken.is_empty()
    }

    fn take(&mut self) -> (VecDeque<Begun>, Vec<u64>) {
        (std::mem::take(&mut self.jobs), std::mem::take(&mut self.woken))
    }

    /// The thread may end if there is nothing for it: the next job has another one started.
    fn end(&mut self) -> bool {
        self.runs = !self.jobs.is_empty();
        !self.runs
    }
}

/// Where a job is driven.
#[derive(Clone)]
pub(crate) struct Place {
    context: Context,
    worker: usize,
    number: u64,
}

impl Place {
    /// Lets the job take a turn.
    pub(crate) fn wake(&self) {
        let worker = &workers(&self.context).all[self.worker];
        worker.inbox().woken.push(self.number);
        worker.rouse();
    }
}

/// The workers of this process: a child does not have the threads of its parent.
fn workers(context: &Context) -> &Workers {
    context.extension(ForkLocal::<Workers>::new).get()
}

/// Has a job driven.
///
/// # Errors
/// [`ErrorKind::Internal`] if no thread can be started; the job is dropped then.
pub(super) fn start(context: &Context, route: Route, job: Box<dyn Job>) -> Result<Place> {
    let place = 2 * (context.server_of(route) % GROUPS) + usize::from(!job.may_wait());
    let worker = &workers(context).all[place];
    let mut inbox = worker.inbox();
    if !inbox.runs {
        let of_thread = context.clone();
        thread::start("memlock-worker", move || work(&of_thread, place))
            .map_err(|error| no_thread(&error.to_string()))?;
        inbox.runs = true;
    }
    inbox.last_number += 1;
    let number = inbox.last_number;
    let is_first = inbox.jobs.is_empty();
    inbox.jobs.push_back((number, route, job));
    worker.open.fetch_add(1, Ordering::SeqCst);
    drop(inbox);
    // Otherwise the thread has been woken, and has not looked yet.
    if is_first {
        worker.rouse();
    }
    Ok(Place { context: context.clone(), worker: place, number })
}

/// Whether this process has begun calls of the client that have not ended.
pub(crate) fn any(context: &Context) -> bool {
    workers(context).all.iter().any(|worker| worker.open.load(Ordering::SeqCst) > 0)
}

/// Has all threads look around. Whether one runs.
#[cfg(all(test, shuttle))]
pub(crate) fn rouse_all(context: &Context) -> bool {
    let workers = &workers(context).all;
    workers.iter().for_each(Worker::rouse);
    workers.iter().any(|worker| worker.inbox().runs)
}

fn no_thread(why: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("No thread can be started for the call: {why}."))
}

impl Worker {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread look into its inbox.
    fn rouse(&self) {
        self.more.wake_all();
        self.hub.get().into_iter().for_each(|hub| hub.interrupt());
    }

    /// Sleeps until there is something in the inbox. False if no thread is left.
    fn sleep(&self, limit: Duration) -> bool {
        let inbox = self.inbox();
        !inbox.is_empty() || self.more.sleep(inbox, limit)
    }

    /// Made once a server has been reached, because its listener is on the way to that.
    fn hub(&self, context: &Context, route: Route) -> &Arc<Hub> {
        self.hub.get_or_init(|| Hub::new(context.notifier().take(context.local_address(route))))
    }
}

/// A job that has begun.
struct Running {
    job: Box<dyn Job>,
    route: Route,
    wakes_at: Option<Moment>,
    ids: Vec<WaitId>,
}

/// What one thread drives.
struct Driver<'a> {
    context: &'a Context,
    worker: &'a Worker,
    jobs: HashMap<u64, Running>,
    timers: BinaryHeap<Reverse<(Moment, u64)>>,
    ahead: Ahead,
    /// When the moments come at which jobs are woken together: not at the same time in all processes.
    phase: Duration,
    /// Until when nothing is sent to a server that is silent.
    skips_until: Option<Moment>,
}

fn work(context: &Context, place: usize) {
    let worker = &workers(context).all[place];
    let jobs = HashMap::new();
    let (timers, ahead) = (BinaryHeap::new(), Ahead::default());
    let phase = TICK.mul_f64(context.identity().map_or(0.5, Identity::fraction));
    let mut driver = Driver { context, worker, jobs, timers, ahead, phase, skips_until: None };
    let mut ends = (context.cancellations(), context.is_closed());
    let mut idle_since = None;
    // What has just begun comes before what waits, each in its order.
    let (mut begun, mut ready) = (VecDeque::new(), VecDeque::new());
    let mut turns = TURNS;
    loop {
        turns += 1;
        if turns >= TURNS || begun.is_empty() && ready.is_empty() {
            ready.extend(worker.hub.get().into_iter().flat_map(|hub| hub.ready()));
            turns = 0;
        }
        let (jobs, woken) = worker.inbox().take();
        for (number, route, job) in jobs {
            driver.jobs.insert(number, Running { job, route, wakes_at: None, ids: Vec::new() });
            begun.push_back(number);
        }
        ready.extend(woken);
        if std::mem::replace(&mut ends, (context.cancellations(), context.is_closed())) != ends {
            let mut all: Vec<u64> = driver.jobs.keys().copied().collect();
            all.sort_unstable();
            ready.extend(all);
        }
        driver.due(&mut ready);
        let now = context.clock().now();
        if begun.is_empty() {
            driver.read_ahead(&ready);
        }
        if let Some(number) = begun.pop_front().or_else(|| ready.pop_front()) {
            idle_since = None;
            driver.turn(number);
        } else if driver.jobs.is_empty() {
            let since = *idle_since.get_or_insert(now);
            if now.since(since) >= IDLE && worker.inbox().end() || !worker.sleep(IDLE) {
                return;
            }
        } else {
            let next = driver.timers.peek().map(|Reverse((at, _))| at.since(now));
            let limit = next.unwrap_or(IDLE);
            match worker.hub.get() {
                Some(hub) => hub.sleep(limit),
                None => _ = worker.sleep(limit),
            }
        }
    }
}

impl Driver<'_> {
    /// Adds the jobs that are to wake up now.
    fn due(&mut self, ready: &mut VecDeque<u64>) {
        // Those that were woken before their time have left timers.
        if self.timers.len() > 2 * self.jobs.len() + 64 {
            let timer =
                |(&number, running): (&u64, &Running)| Some(Reverse((running.wakes_at?, number)));
            self.timers = self.jobs.iter().filter_map(timer).collect();
        }
        let now = self.context.clock().now();
        while let Some(&Reverse((at, number))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            if self.jobs.get(&number).is_some_and(|running| running.wakes_at == Some(at)) {
                ready.push_back(number);
            }
        }
    }

    /// Reads what the next of these jobs are about to read.
    fn read_ahead(&mut self, ready: &VecDeque<u64>) {
        let jobs = &self.jobs;
        let reading = |number, now| {
            let running: &Running = jobs.get(&number)?;
            Some((running.route, running.job.reading(now)?))
        };
        let prepare = |number| {
            if let Some(running) = jobs.get(&number) {
                running.job.prepare_reading();
            }
        };
        // A thread that ends would leave all its calls without an answer.
        let read = catch_unwind(AssertUnwindSafe(|| {
            self.ahead.read(self.context, ready, reading, prepare)
        }));
        let now = || self.context.clock().now();
        match read {
            Ok(true) => {}
            Ok(false) => self.skips_until = Some(now() + AGAIN),
            Err(_) => self.ahead.failed(now()),
        }
    }

    fn turn(&mut self, number: u64) {
        let now = self.context.clock().now();
        let ahead = Cell::new(self.ahead.take(number, now));
        let Some(mut running) = self.jobs.remove(&number) else { return };
        let (context, route) = (self.context, running.route);
        let is_silent = context.is_silent(route);
        let skips = is_silent && self.skips_until.is_some_and(|until| now < until);
        let turning = Turning { worker: self.worker, context, number, route, ahead, skips };
        let failures = context.failures();
        // A job that panics is dropped, and completes its call with an error.
        let next = catch_unwind(AssertUnwindSafe(|| running.job.turn(&turning)));
        // A turn that has asked nothing says nothing of the server.
        if !skips && context.failures() != failures && context.is_silent(route) {
            self.skips_until = Some(context.clock().now() + AGAIN);
        }
        let until = match next {
            Ok(Next::Sleep(until)) => Some(until),
            Ok(Next::SleepRoughly(until, end)) => {
                Some(roughly(context.clock().now(), until, end, self.phase))
            }
            Ok(Next::Done) | Err(_) => None,
        };
        let ids = if until.is_some() { running.job.ids() } else { &[] };
        if let Some(hub) = self.worker.hub.get()
            && running.ids != ids
        {
            hub.register(number, &running.ids, ids);
        }
        if let Some(until) = until {
            running.ids = ids.to_vec();
            running.wakes_at = Some(until);
            self.timers.push(Reverse((until, number)));
            self.jobs.insert(number, running);
        } else {
            drop(running);
            self.worker.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// When a job wakes up that is to sleep until then, from now on. `phase`: by how much later than the
/// multiples of a tick.
fn roughly(now: Moment, until: Moment, end: Option<Moment>, phase: Duration) -> Moment {
    if until.since(now) < LONG {
        return until;
    }
    let (tick, elapsed) = (TICK.as_nanos(), until.since_boot().saturating_sub(phase).as_nanos());
    let left = u64::try_from(elapsed.next_multiple_of(tick) - elapsed).unwrap_or(0);
    let rounded = until + Duration::from_nanos(left);
    end.map_or(rounded, |end| rounded.min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sleeps_end_together_and_none_after_its_limit() {
        let at = |ms| Moment::from_boot(Duration::from_millis(ms));
        for (until, end, phase, wakes) in [
            (499, None, 0, 499),
            (500, None, 0, 520),
            (520, None, 0, 520),
            (520, None, 7, 527),
            (528, None, 7, 567),
            (521, Some(600), 0, 560),
            (521, Some(530), 0, 530),
            (521, Some(521), 0, 521),
            (1_000_000_000_001, None, 0, 1_000_000_000_040),
        ] {
            let phase = Duration::from_millis(phase);
            assert_eq!(roughly(at(0), at(until), end.map(at), phase), at(wakes), "{until}");
        }
    }
}
