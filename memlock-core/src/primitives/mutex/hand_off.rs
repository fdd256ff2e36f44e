//! Handing off within the process: a releasing thread passes the lock to the next waiting thread in
//! one round trip, with a token, a lease and a fence of its own.
//!
//! To give other processes a chance, the number of hand-offs in a row is limited, and so is the
//! time for which a process hands the lock off. The last one of them reads the queue on the server:
//! where nobody else waits, as many more may follow within half of that time. After that the lock
//! is free for a moment, for those that are in no queue: plain clients, and callers that try again
//! and again.

use std::time::Duration;

use super::lock::{Grant, HandoffRequest, Lock, Tenure};
use super::resolve::{OwnerOutcome, OwnerStep, Successor};
use super::wake::{REAPER, local_waiters};
use crate::error::{ErrorKind, Result};
use crate::guard::lease_guard::Outcome;
use crate::guard::orphan;
use crate::owner::NOTIFIES;
use crate::store::Item;
use crate::target::Target;
use crate::wait::{QueueReceipt, entries};

/// After this time, the lock is not handed off within the process, so that the holds of several
/// threads that hold it for long do not add up for waiters of other processes.
const LONGEST_TURN: Duration = Duration::from_millis(100);
/// How often a lock is handed off within a process before other processes get it, if they wait.
const MOST_IN_A_TURN: u32 = 8;

impl Lock {
    /// Hands the lock off to the first waiting thread of this process. `None` if no thread waits,
    /// the limits of the tenure are reached, an earlier release is in doubt, or the server recovers
    /// or refuses to store the record: the caller then has to release the lock.
    pub(super) fn hand_off(&mut self) -> Option<Result<Outcome<Item>>> {
        if self.kind.tenure.handoffs >= MOST_IN_A_TURN || self.release_in_doubt {
            return None;
        }
        let Target { context, route, .. } = &self.kind.target;
        // On a quorum each acquisition has to win votes of its own.
        if context.guarantees().quorum.is_some() || context.recovery(*route).is_some() {
            return None;
        }
        // Requests for the successor are always tried, even if this guard is being dropped.
        let target = self.kind.target.for_calls();
        let context = &target.context;
        if context.clock().now() >= self.kind.tenure.began + LONGEST_TURN {
            return None;
        }
        let local = local_waiters(context);
        let mut served = local.begin_hand_off(&target.key)?;
        let handoffs = self.kind.tenure.handoffs + 1;
        let reads_queue = handoffs == MOST_IN_A_TURN;
        let HandoffRequest { token, lease } = served.request;
        let resolved = context.identity().and_then(|identity| {
            // A failure may leave this token on its way to the server: from now on, the waiter has
            // to be granted the lock by another token.
            served.request.token = identity.token();
            let mut value = identity.record(token, context.clock());
            value.extend_from_slice(NOTIFIES);
            let successor = Successor { token, value: &value, lease, reads_queue };
            let resolved = self.resolve(OwnerStep::HandOff(&successor))?;
            Ok((resolved, value))
        });
        match resolved {
            Ok((OwnerOutcome::HandedOff { version, fence, sent, queue }, value)) => {
                let ids = std::mem::take(&mut self.entry_ids);
                let is_alone = queue.is_some_and(|queue| {
                    local.has_all(&target.key, &ids, entries::waiters(&queue).map(|it| it.id))
                });
                let is_young = sent < self.kind.tenure.began + LONGEST_TURN / 2;
                let handoffs = if is_alone && is_young { 0 } else { handoffs };
                let tenure = Tenure { handoffs, ..self.kind.tenure };
                let grant = Grant {
                    target: target.clone(),
                    token,
                    value,
                    notifies: true,
                    version,
                    fence,
                    lease,
                    sent,
                    orphan: None,
                    tenure,
                };
                let mut lock = grant.into_lock();
                lock.remember_entries(QueueReceipt {
                    ids,
                    unwoken: false,
                    successors: self.kind.successors,
                });
                let slow = context.guarantees().is_suspicious(context.clock().now().since(sent));
                if slow && lock.cap_deadline_by_ttl().is_err() {
                    drop(lock);
                } else {
                    served.grant(lock);
                }
                Some(Ok(Outcome::Taken(None)))
            }
            Ok((OwnerOutcome::Recovering, _)) => None,
            Ok((lost, _)) => Some(Ok(lost.into())),
            Err(error) => {
                if self.release_in_doubt {
                    let until = context.guarantees().gone(lease, target.now());
                    orphan::remember(&target, &REAPER, token, until);
                }
                // A server that refuses to store may still delete, and so may one for which the
                // waiter's lease is too long with `evictions=refuse`.
                let is_refused = matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Config);
                if is_refused { None } else { Some(Err(error)) }
            }
        }
    }
}
