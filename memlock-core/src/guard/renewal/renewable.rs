//! What can be renewed, as the renewer knows it: a guard of whichever kind, and a renewal of it
//! that is on its way.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::Result;
use crate::guard::lease_guard::{Kind, LeaseGuard};
use crate::guard::outcome::Release;
use crate::lease::Lease;
use crate::owner::Token;
use crate::store::{Failure, Op, Reply};
use crate::target::Target;

/// Whether the acquisition of this token is still to be renewed.
pub(crate) type Wanted = Arc<dyn Fn(Token) -> bool + Send + Sync>;
/// Asks the server for something, without the guard.
pub(crate) type Check = Box<dyn Fn() -> Result<bool> + Send>;

/// A guard that can be renewed, as the renewer sees it.
pub(crate) trait Renewable: Send {
    fn target(&self) -> &Target;
    fn token(&self) -> Token;
    fn fence(&self) -> Option<u64>;
    fn remaining(&self) -> Duration;
    fn release(&mut self) -> Result<Release>;
    fn lease(&self) -> Lease;
    /// The process that acquired it.
    fn process(&self) -> u64;
    /// What sentences are about.
    fn subject(&self) -> String;
    /// When its lease is over, whatever became of a release.
    fn ends(&self) -> Moment;
    /// Whether the server may keep it for longer than its lease.
    fn is_in_doubt(&self) -> bool;
    /// Asks the server whether it is ours, without the guard.
    fn checker(&self) -> Check;
    fn lose(&mut self, in_doubt: bool, ask: bool) -> bool;
    fn begin_drop(&mut self) -> bool;
    fn give_up(&mut self);
    /// Begins a renewal; `in_doubt`: an earlier one got no reply. `None` when there is nothing to
    /// renew.
    fn begin(&mut self, in_doubt: bool) -> Option<Box<dyn PendingRenewal>>;
    fn as_any(&mut self) -> &mut dyn Any;
}

/// What a renewal came to by a step.
pub(crate) enum Progress {
    /// There is another step to take, but for these, which are not ours any more.
    NotYet { gone: Vec<Token> },
    /// All that are left have their new lease.
    Renewed,
}

/// The result of taking another guard along.
pub(crate) enum Joined {
    /// It is to be renewed by itself.
    NotOfThis,
    /// There is nothing to renew.
    Nothing,
    Taken,
}

/// A renewal on its way, of one guard or of several that share an item.
pub(crate) trait PendingRenewal: Send {
    fn op(&self) -> Op<'_>;
    /// Whether the next step changes anything, so that its outcome would be in doubt without a
    /// reply.
    fn writes(&self) -> bool;
    /// Whether all of the old leases last at this moment: nothing is sent afterwards.
    fn lasts(&self, now: Moment) -> bool;
    /// The reply to a step that was sent then, and answered then.
    fn take(&mut self, reply: &Reply, sent: Moment, came: Moment) -> Progress;
    /// Gives a guard of this renewal the lease that it has now.
    fn apply(&self, guard: &mut dyn Renewable);
    /// Takes another guard along.
    fn join(&mut self, _guard: &mut dyn Renewable) -> Joined {
        Joined::NotOfThis
    }
    /// Whether the acquisition of this token is still a part of it.
    fn has(&self, token: Token) -> bool;
    /// Whether another client was faster to write the item.
    fn is_refused(&self) -> bool {
        false
    }
    /// Renews what was refused together with what else this process writes to the item. Gives those
    /// that are gone.
    ///
    /// # Errors
    /// With `sent`, when they may be renewed all the same.
    fn combine(&mut self, _wanted: Wanted) -> std::result::Result<Vec<Token>, Failure> {
        Ok(Vec::new())
    }
}

/// How the guards of one primitive are renewed.
pub(crate) trait RenewableKind: Kind {
    fn fence(_guard: &LeaseGuard<Self>) -> Option<u64> {
        None
    }
    /// What sentences are about while it is renewed.
    fn renewed_subject(&self) -> String;
    /// Asks the server whether it is ours.
    fn check(guard: &LeaseGuard<Self>) -> Check;
    /// Begins a renewal: see [`Renewable::begin`].
    fn begin(guard: &mut LeaseGuard<Self>, in_doubt: bool) -> Option<Box<dyn PendingRenewal>>;
}

impl<K: RenewableKind + 'static> Renewable for LeaseGuard<K> {
    fn target(&self) -> &Target {
        self.kind.target()
    }

    fn token(&self) -> Token {
        self.token
    }

    fn fence(&self) -> Option<u64> {
        K::fence(self)
    }

    fn remaining(&self) -> Duration {
        LeaseGuard::remaining(self)
    }

    fn release(&mut self) -> Result<Release> {
        LeaseGuard::release(self)
    }

    fn lease(&self) -> Lease {
        self.lease
    }

    fn process(&self) -> u64 {
        self.process
    }

    fn subject(&self) -> String {
        self.kind.renewed_subject()
    }

    fn ends(&self) -> Moment {
        self.deadline
    }

    fn is_in_doubt(&self) -> bool {
        self.extension_in_doubt
    }

    fn checker(&self) -> Check {
        K::check(self)
    }

    fn lose(&mut self, in_doubt: bool, ask: bool) -> bool {
        LeaseGuard::lose(self, in_doubt, ask)
    }

    fn begin_drop(&mut self) -> bool {
        LeaseGuard::begin_drop(self)
    }

    fn give_up(&mut self) {
        LeaseGuard::give_up(self);
    }

    fn begin(&mut self, in_doubt: bool) -> Option<Box<dyn PendingRenewal>> {
        K::begin(self, in_doubt)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
