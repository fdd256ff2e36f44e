//! What every guard can do, whatever it holds: the interface of bindings and tools, which treat
//! locks and permits alike.

use std::time::Duration;

use super::lease_guard::LeaseGuard;
use super::outcome::{Extension, Release};
use super::renewal::renewable::RenewableKind;
use super::renewal::{RenewOptions, Renewal};
use crate::clock::Moment;
use crate::error::{Answer, Result};
use crate::owner::Token;
use crate::report::Report;
use crate::store::Route;

/// A guard of any kind: a [`Lock`](crate::Lock) or a [`Permit`](crate::Permit). Each method
/// corresponds to the method of [`LeaseGuard`] with the same name.
#[expect(private_bounds, reason = "sealed, as the guard is")]
pub trait Guard: Sealed + Send + Sync {
    /// The fencing token of a lock. Permits have none.
    fn fence(&self) -> Option<u64>;
    /// The route of its item, for [`Client::call_by_route`](crate::Client::call_by_route).
    fn route(&self) -> Route;
    /// See [`LeaseGuard::token`].
    fn token(&self) -> Token;
    /// See [`LeaseGuard::remaining`].
    fn remaining(&self) -> Duration;
    /// See [`LeaseGuard::deadline`].
    fn deadline(&self) -> Moment;
    /// See [`LeaseGuard::deadline_while_extending`].
    fn deadline_while_extending(&self, lease: Duration) -> Moment;
    /// See [`LeaseGuard::report`].
    fn report(&self, answer: Answer) -> Report;
    /// See [`LeaseGuard::check`].
    ///
    /// # Errors
    /// As for [`LeaseGuard::check`].
    fn check(&self) -> Result<bool>;
    /// See [`LeaseGuard::release`].
    ///
    /// # Errors
    /// As for [`LeaseGuard::release`].
    fn release(&mut self) -> Result<Release>;
    /// See [`LeaseGuard::release_sql`].
    ///
    /// # Errors
    /// As for [`LeaseGuard::release_sql`].
    fn release_sql(&mut self) -> Result<String>;
    /// See [`LeaseGuard::extend`].
    ///
    /// # Errors
    /// As for [`LeaseGuard::extend`].
    fn extend(&mut self, lease: Duration) -> Result<Extension>;
    /// See [`LeaseGuard::renew`].
    ///
    /// # Errors
    /// As for [`LeaseGuard::renew`].
    fn renew(self: Box<Self>, renew: RenewOptions) -> Result<Renewal>;
    /// See [`LeaseGuard::let_go`].
    ///
    /// # Errors
    /// As for [`LeaseGuard::let_go`].
    fn let_go(&mut self) -> Result<Release>;
    /// See [`LeaseGuard::abandon`].
    fn abandon(self: Box<Self>);
}

trait Sealed {}

impl<K: RenewableKind> Sealed for LeaseGuard<K> {}

impl<K: RenewableKind + 'static> Guard for LeaseGuard<K> {
    fn fence(&self) -> Option<u64> {
        K::fence(self)
    }

    fn route(&self) -> Route {
        self.kind.target().route
    }

    fn token(&self) -> Token {
        self.token
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn deadline(&self) -> Moment {
        self.deadline()
    }

    fn deadline_while_extending(&self, lease: Duration) -> Moment {
        self.deadline_while_extending(lease)
    }

    fn report(&self, answer: Answer) -> Report {
        self.report(answer)
    }

    fn check(&self) -> Result<bool> {
        self.check()
    }

    fn release(&mut self) -> Result<Release> {
        self.release()
    }

    fn release_sql(&mut self) -> Result<String> {
        self.release_sql()
    }

    fn extend(&mut self, lease: Duration) -> Result<Extension> {
        self.extend(lease)
    }

    fn renew(self: Box<Self>, renew: RenewOptions) -> Result<Renewal> {
        Renewal::begin(self, renew)
    }

    fn let_go(&mut self) -> Result<Release> {
        self.let_go()
    }

    fn abandon(self: Box<Self>) {
        LeaseGuard::abandon(*self);
    }
}
