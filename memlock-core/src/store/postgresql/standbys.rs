//! What is known of the clocks of a server's standbys: the time of each one's last reply, by its own
//! clock. All texts come from servers.
//!
//! A reply that is dated 4 s ago shows that the standby's clock is at most 4 s behind, because the
//! reply came no later than now. One that is dated in the future shows a clock that is ahead. A
//! standby replies every 10 s by default, and whenever it has written something to its disk: an
//! older date shows a clock that is behind, or a standby that has not replied for so long.

use std::time::Duration;

use super::wire::Rows;
use crate::clock::{brief, whole_seconds};
use crate::store::admin::{Finding, Verdict};

/// A reply that is dated earlier than this, in microseconds, is late or by a wrong clock.
const EARLY: i64 = 15_000_000;
/// A clock that is ahead by less than this, in microseconds, agrees.
const AHEAD: i64 = 1_000_000;
/// Of how many standbys something is said.
const MOST: usize = 8;
/// The longest text that is shown of a standby's name.
const LONGEST_NAME: usize = 64;

/// What [`Clocks`] are read from. Those that are wrong most come first, and those that have not
/// replied last, such as backups. Users without the right to see it see no state. A standby may say
/// any time, such as `infinity`.
pub(super) const QUESTION: &str = "SELECT application_name, host(client_addr), age, state IS NULL
    FROM (SELECT *, CASE WHEN reply_time IS NOT NULL THEN (1000000 * greatest(-1e9, least(1e9,
            extract(epoch FROM clock_timestamp()) - extract(epoch FROM reply_time))))::bigint END AS age
        FROM pg_stat_replication) AS replies
    ORDER BY abs(age) DESC NULLS LAST LIMIT 8";

/// What the last replies show.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// What is wrong, for each clock that seems to be.
    wrong: Vec<String>,
    /// By how many seconds the others are behind at most.
    others: Option<u64>,
    /// Whether the user may not see the replies.
    are_hidden: bool,
}

impl Clocks {
    pub(super) fn parse(rows: Rows) -> Option<Clocks> {
        let mut clocks = Clocks::default();
        for row in rows.into_iter().take(MOST) {
            let [name, host, age, is_hidden] = <[Option<String>; 4]>::try_from(row).ok()?;
            clocks.are_hidden |= is_hidden? == "t";
            let Some(age) = age else { continue };
            clocks.note(&title(name, host), age.parse().ok()?);
        }
        Some(clocks)
    }

    /// `age`: how long ago the last reply was, in microseconds, by the clocks of both servers.
    fn note(&mut self, title: &str, age: i64) {
        let amount = Duration::from_micros(age.unsigned_abs());
        if age < -AHEAD {
            self.wrong.push(format!(
                "the clock of {title} is at least {} ahead of this server's: after a failover to it, leases end so \
                 much earlier",
                brief(amount)
            ));
        } else if age > EARLY {
            self.wrong.push(format!(
                "the last reply of {title} is dated {} ago: unless it has not replied for so long, its clock is \
                 behind this server's, and after a failover to it, fences can fall",
                brief(amount)
            ));
        } else {
            let behind = if age > AHEAD { whole_seconds(amount) } else { 1 };
            self.others = self.others.max(Some(behind));
        }
    }

    /// Adds what is said of them to the finding about replicas.
    pub(super) fn add_to(self, mut finding: Finding) -> Finding {
        let other = if self.wrong.is_empty() { "" } else { "other " };
        let others = self.others.map(|seconds| {
            format!(
                "by the last replies, no {other}clock is more than {seconds} s behind this server's"
            )
        });
        let hidden = self.are_hidden.then(|| "this user may not see their clocks".to_owned());
        let mut mend: Vec<String> = finding.mend.into_iter().collect();
        if !self.wrong.is_empty() {
            finding.verdict = Verdict::Warning;
            mend.push("run an NTP client on the hosts of both".to_owned());
        }
        if self.are_hidden {
            mend.push("GRANT pg_read_all_stats TO this user".to_owned());
        }
        let said = [finding.said].into_iter().chain(self.wrong).chain(others).chain(hidden);
        finding.said = said.collect::<Vec<String>>().join("; ");
        finding.mend = (!mend.is_empty()).then(|| mend.join("; "));
        finding
    }
}

/// A standby in a message, such as `walreceiver at 10.0.0.8`.
fn title(name: Option<String>, host: Option<String>) -> String {
    let shown = |text: String| -> String {
        text.chars().flat_map(char::escape_debug).take(LONGEST_NAME).collect()
    };
    let name = name.filter(|name| !name.is_empty()).map_or("a standby".to_owned(), shown);
    match host {
        Some(host) => format!("{name} at {}", shown(host)),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Note, Warning};

    const SECOND: i64 = 1_000_000;

    fn row(name: &str, age: &str, is_hidden: &str) -> Vec<Option<String>> {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        vec![text(name), text("10.0.0.8"), text(age), text(is_hidden)]
    }

    fn found(rows: Rows) -> Finding {
        let clocks = Clocks::parse(rows).unwrap();
        clocks.add_to(Finding::new("replicas", Note, "some").mend("beware"))
    }

    fn dated(ages: &[i64]) -> Finding {
        found(ages.iter().map(|age| row("standby", &age.to_string(), "f")).collect())
    }

    #[test]
    fn nothing_but_what_the_last_reply_shows_is_said_of_a_clock() {
        let none_is_behind = "some; by the last replies, no clock is more than";
        for (ages, verdict, says) in [
            (&[][..], Note, "some"),
            (&[0], Note, &*format!("{none_is_behind} 1 s behind this server's")),
            (&[-SECOND], Note, &format!("{none_is_behind} 1 s")),
            (&[SECOND * 4 + 1], Note, &format!("{none_is_behind} 5 s")),
            (&[SECOND * 15, 0], Note, &format!("{none_is_behind} 15 s")),
            (
                &[SECOND * 29],
                Warning,
                "some; the last reply of standby at 10.0.0.8 is dated 29 s ago:",
            ),
            (
                &[SECOND * -29],
                Warning,
                "some; the clock of standby at 10.0.0.8 is at least 29 s ahead",
            ),
            (
                &[SECOND * 29, SECOND * 3],
                Warning,
                "; by the last replies, no other clock is more than 3 s",
            ),
            (&[i64::MIN, i64::MAX], Warning, "106751991 days"),
        ] {
            let finding = dated(ages);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.said.contains(says), "{finding:?}");
            let mend = finding.mend.unwrap();
            assert!(mend.starts_with("beware"), "{mend}");
            assert_eq!(mend.contains("NTP"), verdict == Warning, "{mend}");
        }
        // A backup has not replied.
        assert_eq!(found(vec![row("pg_basebackup", "", "f")]).said, "some");
    }

    #[test]
    fn a_user_that_may_not_see_the_clocks_is_told_the_right() {
        let finding = found(vec![row("", "", "t"), row("", "", "t")]);
        assert_eq!(finding.verdict, Note);
        assert!(finding.said.ends_with("; this user may not see their clocks"), "{finding:?}");
        assert_eq!(finding.mend.unwrap(), "beware; GRANT pg_read_all_stats TO this user");
    }

    #[test]
    fn whatever_a_server_sends_is_short_and_printable() {
        let long = "\x1b[2J\n".repeat(1000);
        let finding = found(vec![row(&long, &i64::MAX.to_string(), "f"); 1000]);
        assert!(finding.said.len() < 4096 && !finding.said.contains(['\x1b', '\n']), "{finding:?}");
        for bad in [row("x", "nonsense", "f"), row("x", "1e9", "f"), row("x", "0", ""), vec![]] {
            assert!(Clocks::parse(vec![bad]).is_none());
        }
    }
}
