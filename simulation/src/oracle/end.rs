//! The end of a run.

use super::quorum::owner_of;
use super::state::Oracle;
use super::token::reservation_of;
use crate::site::Site;

impl Oracle {
    /// At the end no call waits and nothing is held.
    pub(crate) fn check_end(&mut self, sites: &[Site]) {
        for server in sites.iter().map(|site| &site.server).filter(|_| self.fault_free) {
            let left = server.keys().find(|key| {
                let value = server.value(key);
                let over =
                    key.ends_with("%wait") && value == Some(b"") || reservation_of(value).is_some();
                // What is not on most servers of a quorum is removed by its client's next call.
                let is_lock = key.ends_with("%wait") || owner_of(key, sites).is_some();
                let is_over = over || self.quorum.is_some() && !is_lock;
                key.starts_with("lock:") && !key.ends_with("%fence") && !is_over
            });
            if let Some(left) = left {
                self.violation.get_or_insert_with(|| {
                    format!("the run has ended, and {left} is left on the server")
                });
            }
        }
        let time = sites[0].server.time();
        let permits = if self.fault_free { self.semaphores_at_the_end(time) } else { None };
        if let Some(violation) = self.lists.violation(true).or(permits) {
            self.report_violation(violation);
        }
    }
}
