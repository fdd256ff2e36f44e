//! Orphaned grants: what may have been granted although the caller got another answer, because the
//! reply was lost and reading back failed.
//!
//! | an orphaned grant | what is true | what may change it |
//! | --- | --- | --- |
//! | remembered | its server may hold it for this process, and no caller holds it | any call that contacts its server, by reaping it |
//! | reaped | it was removed, and the next waiter was woken | nothing |
//! | expired | it has expired on the server | nothing |

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::context::Context;
use crate::error::Result;
use crate::fork::ForkLocal;
use crate::name::Key;
use crate::owner::Token;
use crate::store::Route;
use crate::target::Target;

/// Half of the first pause after an orphaned grant was not found. Each further pause is twice as
/// long, up to the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How many grants are reaped at one contact: each takes two round trips of another call.
const AT_ONCE: usize = 16;
/// How long reaping may delay the call that contacts the server, beyond reaping the first grant.
const TIME: Duration = Duration::from_millis(50);

/// How the orphaned grants of one primitive are reaped.
pub(crate) struct Reaper {
    /// Removes the grant to this token. True if there was one.
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
    /// Not the target, which would keep the client alive that owns this list.
    key: Key,
    kind: &'static str,
    token: Token,
    /// By this time the grant has expired on the server.
    until: Moment,
    /// Not tried before this time.
    next_try: Moment,
    /// The last pause.
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

/// Remembers a possible grant to this token, to reap it later. `until`: when the grant
/// has expired on the server.
pub(crate) fn remember(target: &Target, reaper: &'static Reaper, token: Token, until: Moment) {
    let (key, kind) = (target.key.clone(), target.kind());
    log::info!(
        "What was asked for of the {} may be left behind there; it is taken off at the next contact.",
        target.subject()
    );
    let orphans = Orphans::of(&target.context);
    let next_try = target.now();
    let orphan = OrphanedGrant { reaper, key, kind, token, until, next_try, pause: PAUSE };
    orphans.put(orphans.list(), std::iter::once(orphan));
}

/// Reaps orphaned grants: several on the server of this item, and, unless the caller tries once, one
/// on another server. A silent server is not contacted, so that it does not delay the use of another.
/// If there are no orphaned grants, this costs one atomic read.
pub(crate) fn reap(target: &Target) {
    let Target { context, route, .. } = target;
    let orphans = Orphans::of(context);
    if !orphans.any.load(Ordering::Acquire) {
        return;
    }
    let (now, server) = (context.clock().now(), context.server_of(*route));
    let mut list = orphans.list();
    list.retain(|orphan| orphan.until > now);
    let (mut here, mut elsewhere) = (AT_ONCE, usize::from(!target.tries_once()));
    let due: Vec<OrphanedGrant> = list
        .extract_if(.., |orphan| {
            let route = Route::of(&orphan.key);
            let left = if context.server_of(route) == server { &mut here } else { &mut elsewhere };
            let is_due = *left > 0 && orphan.next_try <= now && context.silence(route).is_none();
            *left -= usize::from(is_due);
            is_due
        })
        .collect();
    orphans.put(list, std::iter::empty());
    let mut due = due.into_iter();
    while let Some(mut orphan) = due.next() {
        // A request whose grant is not found may still be under way, so only a removed grant is
        // forgotten.
        let OrphanedGrant { reaper, ref key, kind, token, .. } = orphan;
        let target = Target::new(context.clone(), kind, key.clone()).for_drop();
        let found = (reaper.reap)(&target, token);
        let reaped = matches!(found, Ok(true));
        if reaped {
            log::debug!("What was left behind of the {} was taken off.", target.subject());
            (reaper.wake_next)(&target);
        }
        let after = context.clock().now();
        if found.is_ok() {
            orphan.pause = (orphan.pause * 2).min(LONGEST_PAUSE);
        }
        orphan.next_try = after + orphan.pause;
        // A slow server is asked for the other grants at later contacts.
        let left = if after.since(now) > TIME { due.len() } else { 0 };
        let again = (!reaped).then_some(orphan);
        orphans.put(orphans.list(), again.into_iter().chain(due.by_ref().take(left)));
    }
}
