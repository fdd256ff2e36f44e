//! How a lease is renewed, and the notifications of its holder.

use std::fmt;
use std::time::Duration;

use crate::guard::outcome::Loss;

/// How a lease is renewed.
#[derive(Default)]
pub struct RenewOptions {
    /// How long the lease is renewed, counted from the start of the renewal; `None`: until it is
    /// released. The lease that is current then is the last one, so that a program that hangs does
    /// not hold the lock forever.
    pub max_hold: Option<Duration>,
    /// The callback for notices. It is called by the renewal thread, which renews nothing until the
    /// callback returns, so it should be brief. That thread blocks signals, and so do programs that
    /// are started there. A loss that a release finds is returned by the release, and not reported
    /// here.
    pub on_notice: Option<NoticeCallback>,
}

/// The callback for notices.
pub(crate) type NoticeCallback = Box<dyn Fn(Notice) + Send + Sync>;

impl fmt::Debug for RenewOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewOptions").field("max_hold", &self.max_hold).finish_non_exhaustive()
    }
}

/// A notification for the holder of a renewed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The lease could not be renewed so far, or is no longer renewed, and ends after this time.
    /// Reported once each time that the lease gets into this state.
    AtRisk(Duration),
    /// The lock is no longer held. Reported once.
    Lost(Loss),
}
