//! Calls for a mutex, and grants: fences rise from holder to holder.

use super::call::Call;
use super::hold::HoldInterval;
use super::state::Oracle;
use super::token::Token;
use crate::server::Cause;
use crate::time::Nanos;

impl Oracle {
    pub(crate) fn asks(
        &mut self,
        task: usize,
        process: usize,
        key: &str,
        limit: Option<Nanos>,
        now: Nanos,
    ) {
        let before = self.waiting_for(key);
        let irregular = self.locks.get(key).map_or(0, |lock| lock.irregular);
        let key = key.to_owned();
        let (joined, cancelled) = (false, false);
        let call = Call { key, process, begun: now, before, joined, irregular, limit, cancelled };
        self.calls.insert(task, call);
    }

    pub(crate) fn granted(
        &mut self,
        task: usize,
        token: String,
        fence: u64,
        until: Nanos,
        now: Nanos,
    ) -> u64 {
        self.tally.grants += 1;
        let Some(call) = self.calls.remove(&task) else { return 0 };
        if let Some(violation) = self.passed_over(&call, now) {
            self.report_violation(violation);
        }
        let lost =
            matches!(self.tokens.get(&token), Some(Token { gone: Some((_, Cause::Loss)), .. }));
        let forgotten = matches!(
            self.tokens.get(&token),
            Some(Token { gone: Some((_, Cause::Forgotten)), .. })
        );
        let lock = self.locks.entry(call.key.clone()).or_default();
        lock.irregular += u64::from(call.limit == Some(0));
        if until > now && !lost {
            if fence <= lock.greatest_fence {
                let greatest = lock.greatest_fence;
                let what = format!(
                    "{} was granted with fence {fence}, after one with {greatest}",
                    call.key
                );
                self.violation.get_or_insert(what);
            }
            lock.greatest_fence = lock.greatest_fence.max(fence);
        }
        let hold = HoldInterval::new(call.process, call.key, token, until);
        self.holds(HoldInterval { lost, forgotten, since: now, ..hold })
    }
}
