//! Orphaned grants: what may have been granted although the caller got another answer, since the
//! reply was lost and reading back failed.
//!
//! | an orphaned grant | what is true | what may change it |
//! | --- | --- | --- |
//! | remembered | its server may hold it for us, and no caller holds it | any call that meets its server, by reaping it |
//! | reaped | it was removed, and the next waiter was woken | nothing |
//! | expired | the server has removed it by itself | nothing |

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::context::Context;
use crate::error::Result;
use crate::fork::{self, ForkLocal};
use crate::name::Key;
use crate::owner::Token;
use crate::store::Route;
use crate::target::Target;

/// How long an orphaned grant is left alone after it was not found; later pauses are longer.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How many are reaped at one contact: each takes two round trips of another call.
const AT_ONCE: usize = 16;
/// The time for which reaping may hold up the call that meets the server, besides the first.
const TIME: Duration = Duration::from_millis(50);

/// How the orphaned grants of one primitive are reaped.
pub(crate) struct Reaper {
    /// Removes what this token was granted. True when there was something to remove.
    pub(crate) reap: fn(&Target, Token) -> Result<bool>,
    /// Wakes the next waiter.
    pub(crate) wake_next: fn(&Target),
}

#[derive(Default)]
struct Orphans {
    any: AtomicBool,
    list: Mutex<Vec<OrphanedGrant>>,
}

#[derive(Clone)]
struct OrphanedGrant {
    reaper: &'static Reaper,
    /// Not its target: that would keep the client alive which keeps this list.
    key: Key,
    token: Token,
    /// After this the server has removed it by itself.
    until: Moment,
    /// Not to be tried before.
    next_try: Moment,
    /// How long it was left alone the last time.
    pause: Duration,
}

impl Orphans {
    fn of(context: &Context) -> &Orphans {
        context.extension(ForkLocal::<Orphans>::new).get()
    }

    fn list(&self) -> MutexGuard<'_, Vec<OrphanedGrant>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(
        &self,
        mut list: MutexGuard<'_, Vec<OrphanedGrant>>,
        some: impl Iterator<Item = OrphanedGrant>,
    ) {
        list.extend(some);
        self.any.store(!list.is_empty(), Ordering::Release);
    }
}

/// Remembers what may have been granted to this token, to reap it later. `until`: when the server
/// has removed it by itself.
pub(crate) fn remember(target: &Target, reaper: &'static Reaper, token: Token, until: Moment) {
    let (process, key) = (fork::process(), target.key.clone());
    log::info!(
        "What was asked for of {key} may be left behind on its server; it is taken off at the next contact."
    );
    // In a child that was made on the way, it is the parent's.
    if process != fork::generation() {
        return;
    }
    let orphans = Orphans::of(&target.context);
    let next_try = target.now();
    let orphan = OrphanedGrant { reaper, key, token, until, next_try, pause: PAUSE };
    orphans.put(orphans.list(), std::iter::once(orphan));
}

/// Reaps orphaned grants: those on the server of this route, so many at a time, and one of another
/// server's. A silent server is left alone, so that it does not hold up the use of another. Without
/// any this costs one atomic read.
pub(crate) fn reap(context: &Context, route: Route) {
    let orphans = Orphans::of(context);
    if !orphans.any.load(Ordering::Acquire) {
        return;
    }
    let (now, server) = (context.clock().now(), context.server_of(route));
    let mut list = orphans.list();
    list.retain(|orphan| orphan.until > now);
    let (mut here, mut elsewhere) = (AT_ONCE, 1);
    let due: Vec<OrphanedGrant> = list
        .extract_if(.., |orphan| {
            let route = Route::of(&orphan.key);
            let left = if context.server_of(route) == server { &mut here } else { &mut elsewhere };
            let is_due = *left > 0 && orphan.next_try <= now && !context.is_silent(route);
            *left -= usize::from(is_due);
            is_due
        })
        .collect();
    orphans.put(list, std::iter::empty());
    let mut due = due.into_iter();
    while let Some(mut orphan) = due.next() {
        // A grant that is not there yet may still be under way, so only a removed one is done with.
        let OrphanedGrant { reaper, ref key, token, .. } = orphan;
        let target = Target::new(context.for_drop(), key.clone());
        let reaped = matches!((reaper.reap)(&target, token), Ok(true));
        if reaped {
            log::debug!("What was left behind of {} was taken off.", target.key);
            (reaper.wake_next)(&target);
        }
        if fork::is_astray() {
            return;
        }
        let after = context.clock().now();
        orphan.pause = (orphan.pause * 2).min(LONGEST_PAUSE);
        orphan.next_try = after + orphan.pause;
        // A slow server is asked for the others at later contacts.
        let left = if after.since(now) > TIME { due.len() } else { 0 };
        let again = (!reaped).then_some(orphan);
        orphans.put(orphans.list(), again.into_iter().chain(due.by_ref().take(left)));
    }
}
