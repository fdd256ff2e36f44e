//! What can be renewed, as the renewal thread uses it: a guard of any kind, and a renewal of it in
//! progress.

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

/// Whether the acquisition with this token is still to be renewed.
pub(crate) type Wanted = Arc<dyn Fn(Token) -> bool + Send + Sync>;
/// A read from the server that does not need the guard.
pub(crate) type Check = Box<dyn FnOnce() -> Result<bool> + Send>;

/// A guard that can be renewed, as the renewal thread uses it.
pub(crate) trait Renewable: Send {
    fn target(&self) -> &Target;
    fn token(&self) -> Token;
    fn fence(&self) -> Option<u64>;
    fn remaining(&self) -> Duration;
    fn release(&mut self) -> Result<Release>;
    fn release_sql(&mut self) -> Result<String>;
    fn lease(&self) -> Lease;
    /// The generation of the process that acquired the guard.
    fn process(&self) -> u64;
    /// What the holder has, for messages, such as `permit of the semaphore …`.
    fn what(&self) -> String;
    /// When the lease is over, whatever the outcome of a release.
    fn ends(&self) -> Moment;
    /// Whether the server may keep the item for longer than the lease.
    fn is_in_doubt(&self) -> bool;
    /// A check whether the server still has the lease, which does not need the guard.
    fn checker(&self) -> Check;
    /// A check for a lease that the server does not have: puts it back if the server may have
    /// forgotten it. `None` if it cannot be put back.
    fn reclaimer(&mut self) -> Option<Check>;
    fn lose(&mut self, in_doubt: bool, ask: bool) -> bool;
    fn begin_drop(&mut self) -> Result<()>;
    fn give_up(&mut self);
    /// Begins a renewal. `in_doubt`: an earlier renewal got no reply. `None` if there is nothing to
    /// renew.
    fn begin(&mut self, in_doubt: bool) -> Option<Box<dyn PendingRenewal>>;
    fn as_any(&mut self) -> &mut dyn Any;
}

/// The progress of a renewal after a step.
pub(crate) enum Progress {
    /// There is another step to take. The leases `gone` are no longer held.
    NotYet { gone: Vec<Token> },
    /// All remaining guards have their new lease.
    Renewed,
    /// They may have it, but for how long is not known: the renewal begins anew.
    InDoubt,
}

/// The result of adding another guard.
pub(crate) enum Joined {
    /// The guard has to be renewed separately.
    NotOfThis,
    /// There is nothing to renew.
    Nothing,
    Taken,
}

/// A renewal in progress, of one guard or of several guards that share an item.
pub(crate) trait PendingRenewal: Send {
    /// The operations of the next step.
    fn ops(&self) -> Vec<Op<'_>>;
    /// Whether the next step writes, so that its outcome would be in doubt without a reply.
    fn writes(&self) -> bool;
    /// Whether all the old leases still run at this moment: nothing is sent afterwards.
    fn lasts(&self, now: Moment) -> bool;
    /// Called before a step is sent, with each guard of this renewal: notes what the request may
    /// leave on the server if it is carried out after a release.
    fn announce(&self, _guard: &mut dyn Renewable) {}
    /// Handles the replies to a step, with the times when the step was sent and answered.
    fn take(&mut self, replies: Vec<Reply>, sent: Moment, came: Moment) -> Progress;
    /// Gives a guard of this renewal its new lease.
    fn apply(&self, guard: &mut dyn Renewable);
    /// Adds another guard.
    fn join(&mut self, _guard: &mut dyn Renewable) -> Joined {
        Joined::NotOfThis
    }
    /// Whether the acquisition with this token is still a part of this renewal.
    fn has(&self, token: Token) -> bool;
    /// Whether another client was faster to write the item.
    fn is_refused(&self) -> bool {
        false
    }
    /// Renews what was refused, together with this process's other writes to the item. Returns the
    /// leases that are gone.
    ///
    /// # Errors
    /// With `sent` if the leases may have been renewed all the same.
    fn combine(&mut self, _wanted: Wanted) -> std::result::Result<Vec<Token>, Failure> {
        Ok(Vec::new())
    }
}

/// How the guards of one primitive are renewed.
pub(crate) trait RenewableKind: Kind {
    fn fence(_guard: &LeaseGuard<Self>) -> Option<u64> {
        None
    }
    /// A check whether the server still has the lease.
    fn check(guard: &LeaseGuard<Self>) -> Check;
    /// Puts the lease back that the server has forgotten: see [`Renewable::reclaimer`].
    fn reclaimer(guard: &mut LeaseGuard<Self>) -> Option<Check>;
    /// Begins a renewal: see [`Renewable::begin`].
    fn begin(guard: &mut LeaseGuard<Self>, in_doubt: bool) -> Option<Box<dyn PendingRenewal>>;
}

/// A check whose errors name what is checked.
fn named<K: Kind>(target: &Target, check: Check) -> Check {
    let target = target.clone();
    Box::new(move || check().map_err(|error| target.said(K::CHECKING, error)))
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

    fn release_sql(&mut self) -> Result<String> {
        LeaseGuard::release_sql(self)
    }

    fn lease(&self) -> Lease {
        self.lease
    }

    fn process(&self) -> u64 {
        self.process
    }

    fn what(&self) -> String {
        self.kind.what(&self.kind.target().subject())
    }

    fn ends(&self) -> Moment {
        self.deadline
    }

    fn is_in_doubt(&self) -> bool {
        self.extension_in_doubt
    }

    fn checker(&self) -> Check {
        named::<K>(self.kind.target(), K::check(self))
    }

    fn reclaimer(&mut self) -> Option<Check> {
        let check = K::reclaimer(self)?;
        Some(named::<K>(self.kind.target(), check))
    }

    fn lose(&mut self, in_doubt: bool, ask: bool) -> bool {
        LeaseGuard::lose(self, in_doubt, ask)
    }

    fn begin_drop(&mut self) -> Result<()> {
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
