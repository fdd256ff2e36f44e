//! Handing over within the process: the next thread in line gets the lock from the last one in one
//! round trip, with a token, a lease and a fence of its own, and without the queue on the server
//! having any part in it.
//!
//! So that other processes come to their turn, a process keeps a lock for so many hand-overs, or
//! for a tenth of a second.

use std::time::Duration;

use super::lock::{Grant, HandoffRequest, Lock, Tenure};
use super::resolve::{OwnerOutcome, OwnerStep, Successor};
use super::wake::{REAPER, local_waiters};
use crate::error::{ErrorKind, Result};
use crate::guard::lease_guard::Outcome;
use crate::guard::orphan;
use crate::owner::NOTIFIES;
use crate::store::Item;
use crate::wait::QueueReceipt;

/// For how long, so that one with threads that hold it for long keeps others off no longer than
/// these do.
const LONGEST_TURN: Duration = Duration::from_millis(100);
/// How often a lock is handed over within a process before others get their turn.
const MOST_IN_A_TURN: u32 = 8;

impl Lock {
    /// Hands the lock over to the first thread of this process that waits for it. `None` when there
    /// is none, or it is another process's turn: then the lock is to be released.
    pub(super) fn hand_off(&mut self) -> Option<Result<Outcome<Item>>> {
        if self.kind.tenure.handoffs >= MOST_IN_A_TURN || self.release_in_doubt {
            return None;
        }
        // The successor is no part of our drop, if this is one.
        let target = self.kind.target.for_calls();
        let context = &target.context;
        if context.clock().now() >= self.kind.tenure.began + LONGEST_TURN {
            return None;
        }
        let mut served = local_waiters(context).begin_hand_off(&target.key)?;
        let HandoffRequest { token, lease } = served.ask;
        let resolved = context.identity().and_then(|identity| {
            // Should that token be left on its way to the server by a failure, another one is asked
            // with from then on.
            served.ask.token = identity.token();
            let mut value = identity.record(token, context.clock());
            value.extend_from_slice(NOTIFIES);
            let resolved =
                self.resolve(OwnerStep::HandOff(&Successor { token, value: &value, lease }))?;
            Ok((resolved, value))
        });
        match resolved {
            Ok((OwnerOutcome::HandedOff { version, fence, sent }, value)) => {
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
                    tenure: Tenure { handoffs: self.kind.tenure.handoffs + 1, ..self.kind.tenure },
                };
                let mut lock = grant.into_lock();
                let ids = std::mem::take(&mut self.stood);
                lock.stood_in_line(QueueReceipt {
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
            Ok((lost, _)) => Some(Ok(lost.into())),
            Err(error) => {
                if self.release_in_doubt {
                    let until = context.guarantees().gone(lease, target.now());
                    orphan::remember(&target, &REAPER, token, until);
                }
                // A server that refuses to store may still delete.
                if error.kind() == ErrorKind::Protocol { None } else { Some(Err(error)) }
            }
        }
    }
}
