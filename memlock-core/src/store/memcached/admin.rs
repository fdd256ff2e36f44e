//! The requests of tools to a memcached.

mod checks;
mod clock;
#[cfg(any(fuzzing, test))]
pub(super) mod fuzzed;
mod keys;
mod text;

use std::time::Duration;

use crate::error::Result;
use crate::store::admin::{Admin, Finding, Value};

pub(super) use text::Text;

impl Admin for Text {
    fn round_trip(&mut self) -> Result<Duration> {
        Text::round_trip(self)
    }

    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        Text::keys(self, wanted)
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        Text::values(self, keys)
    }

    fn health(&mut self, lease: Duration) -> Result<Vec<Finding>> {
        let (stats, clock) = clock::stats_and_finding(self)?;
        let settings = self.stats("stats settings")?;
        let mut findings = checks::all(&stats, &settings, lease);
        findings.push(clock);
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::text::tests::{PATIENCE, server_that_says};
    use super::*;
    use crate::store::admin::Verdict;

    #[test]
    fn numbers_that_no_server_has_are_judged_like_others() {
        for time in ["nan", "inf", "-1", "1e300", "18446744073709551615"] {
            let stats = format!(
                "STAT time {time}\r\nSTAT version 1.6.18\x1b[31m\r\nSTAT uptime 18446744073709551615\r\n\
                 STAT max_connections 18446744073709551615\r\nSTAT curr_connections 18446744073709551615\r\nEND\r\n"
            );
            let said = format!("{stats}END\r\n").into_bytes();
            let mut text = server_that_says([said], Duration::from_secs(1), PATIENCE);
            let findings = text.health(Duration::from_secs(60)).unwrap();
            assert!(
                findings
                    .iter()
                    .any(|finding| finding.what == "clock" && finding.verdict == Verdict::Note)
            );
            assert!(findings.iter().all(|finding| !finding.said.contains('\x1b')), "{findings:?}");
        }
    }
}
