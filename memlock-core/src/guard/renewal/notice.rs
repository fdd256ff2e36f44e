//! How something is renewed, and of what its holder is notified meanwhile.

use std::fmt;
use std::time::Duration;

use crate::guard::outcome::Loss;

/// How something is kept.
#[derive(Default)]
pub struct RenewOptions {
    /// For how long it is renewed, counted from when it is kept; `None`: as long as it is not
    /// released. It ends with the lease that it has then, so that a program that hangs does not
    /// hold it for ever.
    pub max_hold: Option<Duration>,
    /// The notifications. The callback is called by the renewer's thread, which renews nothing
    /// until it returns: so it should be brief. That thread blocks signals, and so do programs that
    /// are started there. What a release finds is returned by it, and not reported here.
    pub on_notice: Option<NoticeCallback>,
}

/// What is called when there is something to tell.
pub(crate) type NoticeCallback = Box<dyn Fn(Notice) + Send + Sync>;

impl fmt::Debug for RenewOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewOptions").field("max_hold", &self.max_hold).finish_non_exhaustive()
    }
}

/// What the holder of a renewed hold is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It could not be renewed so far, or is not to be, and ends when so much time has passed. Once
    /// for each time that it gets this far.
    AtRisk(Duration),
    /// It is not held any more. Once.
    Lost(Loss),
}
