//! Handing off within the process: a releasing thread passes the lock to the next waiting thread in
//! one round trip, with a token, a lease and a fence of its own. The queue on the server is not
//! involved.
//!
//! To give other processes a chance, the number of hand-offs in a row is limited, and so is the
//! time for which a process hands the lock off.

use std::time::Duration;

use super::lock::{Exclusive, Grant, HandoffRequest, Lock, Tenure};
use super::step::{Action, OwnerOutcome, Successor};
use super::wake::{REAPER, local_waiters};
use crate::clock::Moment;
use crate::error::{ErrorKind, Result};
use crate::guard::lease_guard::Outcome;
use crate::guard::orphan;
use crate::mutation::{self, Mutation};
use crate::owner::NOTIFIES;
use crate::store::{Item, Version};
use crate::target::Target;
use crate::wait::QueueReceipt;

/// After this time, the lock is not handed off within the process, so that the holds of several
/// threads that hold it for long do not add up for waiters of other processes.
const LONGEST_TURN: Duration = Duration::from_millis(100);
/// How often a lock is handed off within a process before other processes get it.
const MOST_IN_A_TURN: u32 = 8;

impl Lock {
    /// Hands the lock off to the first waiting thread of this process. `None` if no thread waits,
    /// the limits of the tenure are reached, an earlier release is in doubt, or the server recovers
    /// or refuses to store the record: the caller then has to release the lock.
    pub(super) fn hand_off(&mut self) -> Option<Result<Outcome<Item>>> {
        if !self.may_hand_off() {
            return None;
        }
        // The successor's lock is for calls, even if this guard is being dropped.
        let target = self.kind.target.for_calls();
        let mut served = local_waiters(&target.context).begin_hand_off(&target.key)?;
        let HandoffRequest { token, lease } = served.request;
        let resolved = target.context.identity().and_then(|identity| {
            // A failure may leave this token on its way to the server: from now on, the waiter has
            // to be granted the lock by another token.
            served.request.token = identity.token();
            let mut value = identity.record(token, target.context.clock());
            value.extend_from_slice(NOTIFIES);
            let successor = Successor { token, value, lease };
            Ok((self.resolve(Action::HandOff(successor.clone()))?, successor))
        });
        match resolved {
            Ok((OwnerOutcome::HandedOff { version, fence, sent }, successor)) => {
                if let Some(lock) = self.granted(&target, successor, version, fence, sent) {
                    served.grant(lock);
                }
                Some(Ok(Outcome::Taken(None)))
            }
            Ok((OwnerOutcome::Recovering, _)) => None,
            Ok((lost, _)) => Some(Ok(lost.into())),
            Err(error) => {
                if self.release_in_doubt {
                    orphan::remember(&target, &REAPER, token, target.gone(lease));
                }
                // A server that refuses to store may still delete, and one that may evict the
                // record of the waiter, whose lease is longer, is still asked to.
                let is_refused = matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Config);
                if is_refused { None } else { Some(Err(error)) }
            }
        }
    }

    fn may_hand_off(&self) -> bool {
        let Exclusive { target, tenure, version, .. } = &self.kind;
        let recovers = !target.recovers_for(*version).is_zero();
        tenure.handoffs < MOST_IN_A_TURN
            && target.now() < tenure.began + LONGEST_TURN
            && !self.release_in_doubt
            && (!recovers || mutation::has(Mutation::HandOffWhileRecovering))
    }

    /// The lock of the successor; `None` if the server has kept it for too short a time.
    fn granted(
        &mut self,
        target: &Target,
        successor: Successor,
        version: Version,
        fence: u64,
        sent: Moment,
    ) -> Option<Lock> {
        let Successor { token, value, lease } = successor;
        let Exclusive { tenure, successors, .. } = self.kind;
        let tenure = Tenure { handoffs: tenure.handoffs + 1, ..tenure };
        let took = target.now().since(sent);
        let is_slow = target.context.guarantees().is_suspicious(took);
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
        let ids = std::mem::take(&mut self.entry_ids);
        lock.remember_entries(QueueReceipt { ids, unwoken: false, successors });
        (!is_slow || lock.resolve(Action::Verify).is_ok()).then_some(lock)
    }
}
