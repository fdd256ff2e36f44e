//! The end of a run.

use super::state::Oracle;
use super::token::reservation_of;
use crate::server::Server;

impl Oracle {
    /// At the end no call waits and nothing is held.
    pub(crate) fn check_end(&mut self, server: &Server) {
        if self.fault_free {
            let left = server.keys().find(|key| {
                let value = server.value(key);
                let over =
                    key.ends_with("%wait") && value == Some(b"") || reservation_of(value).is_some();
                key.starts_with("lock:") && !over
            });
            if let Some(left) = left {
                self.violation.get_or_insert_with(|| {
                    format!("the run has ended, and {left} is left on the server")
                });
            }
        }
        let permits =
            if self.fault_free { self.semaphores_at_the_end(server.time()) } else { None };
        if let Some(violation) = self.lists.violation(true).or(permits) {
            self.report_violation(violation);
        }
    }
}
