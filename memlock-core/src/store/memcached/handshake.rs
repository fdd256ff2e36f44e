//! The server's description of itself when a connection is opened, and whether it is suitable for
//! locks.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::lease::DRIFT;
use crate::store::remote;

use super::life::Life;
use super::retention::{Retention, Settings};

/// Requests the whole description in one packet.
pub(super) const REQUEST: &[u8] = b"stats\r\nstats settings\r\n";

/// Each of the two replies ends with this line.
const END: &[u8] = b"END";

/// More lines than the two replies of any server have.
const MOST_LINES: usize = 2000;

/// The oldest version whose `md` with a cas is correct.
const OLDEST: (u64, u64, u64) = (1, 6, 13);

/// From this version on a store's cas id is drawn before the item is locked: the later of two
/// stores may get the lower id. Measured on 1.6.38 and 1.6.45; 1.6.18 draws the id under the lock.
/// The change came with the `E` flag, early in 2024.
const UNORDERED: (u64, u64, u64) = (1, 6, 24);

/// Collects the lines of the replies.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    lines: usize,
    ends: usize,
    version: Option<String>,
    pid: Option<u64>,
    time: Option<u64>,
    uptime: Option<u64>,
    cas_enabled: Option<bool>,
    settings: Settings,
}

/// The result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) life: Life,
    /// The server's own Unix time when it answered.
    pub(super) time: u64,
    /// How old the server was, at least.
    pub(super) age: Duration,
    /// Whether versions rise in the order of the stores.
    pub(super) ordered: bool,
    /// What the server keeps when its memory is full.
    pub(super) retention: Retention,
    /// Whether it may then refuse to store.
    pub(super) refuses: bool,
}

/// One reading of a server's clock.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct ServerTime {
    /// The time that the clock showed, in Unix seconds.
    pub(super) shown: u64,
    /// The moment of the reading, on this host's clock.
    pub(super) at: Moment,
}

/// On which side of the truth a computed time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Rather too late than too early: an expiry computed from it is never before the end of the
    /// lease.
    Latest,
    /// Rather too early than too late: an item is kept no longer than before.
    Earliest,
}

impl ServerTime {
    /// The server's Unix time. The two clocks may drift apart by 1 in 5,000.
    pub(super) fn at(self, now: Moment, bound: Bound) -> u64 {
        let passed = now.since(self.at).as_secs();
        let drift = passed / DRIFT;
        self.shown.saturating_add(match bound {
            Bound::Latest => passed + drift + 2,
            Bound::Earliest => passed.saturating_sub(drift + 1),
        })
    }
}

impl remote::ServerTime for ServerTime {
    fn at(self, now: Moment) -> Duration {
        Duration::from_secs(self.at(now, Bound::Latest))
    }

    fn shown(self) -> Duration {
        Duration::from_secs(self.shown)
    }
}

impl Handshake {
    /// Handles the next line. True if it was the last one.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<bool> {
        self.lines += 1;
        if line == END {
            self.ends += 1;
            return Ok(self.ends == 2);
        }
        let text = String::from_utf8_lossy(line);
        if text.contains("Too many open connections") {
            return Err(Error::crowded(
                "The server takes no more connections: raise its -c, or use fewer.",
            ));
        }
        let mut words = text.split(' ');
        let (Some("STAT"), Some(name), true) =
            (words.next(), words.next(), self.lines <= MOST_LINES)
        else {
            return Err(Error::protocol(format!(
                "The server answered {:?} to \"stats\": it is not a memcached that memlock can \
                 use.",
                text.chars().take(80).collect::<String>()
            )));
        };
        let value = words.next().unwrap_or_default();
        match name {
            "version" => self.version = Some(value.to_owned()),
            "pid" => self.pid = value.parse().ok(),
            "time" => self.time = value.parse().ok(),
            "uptime" => self.uptime = value.parse().ok(),
            "cas_enabled" => self.cas_enabled = Some(value == "yes"),
            _ => self.settings.note(name, value),
        }
        Ok(false)
    }

    /// Decides whether the server is suitable, once all lines were read.
    pub(super) fn finish(self) -> Result<Introduction> {
        let version = self.version.unwrap_or_default();
        let ordered = match parse_version(&version) {
            Some(numbers) if numbers >= OLDEST => numbers < UNORDERED,
            _ => {
                return Err(Error::protocol(format!(
                    "The server is memcached {version:?}, and memlock needs 1.6.13 or later: \
                     older ones do not delete by cas correctly. Upgrade it."
                )));
            }
        };
        if self.cas_enabled != Some(true) {
            return Err(Error::protocol(
                "The server runs without cas (-C), so nobody can prove ownership: start memcached \
                 without -C.",
            ));
        }
        let (Some(pid), Some(time), Some(uptime)) = (self.pid, self.time, self.uptime) else {
            return Err(Error::protocol("The server's \"stats\" has no pid, time or uptime."));
        };
        let life = Life { boot: time.saturating_sub(uptime), pid };
        let (retention, refuses) = (self.settings.retention(), self.settings.may_refuse());
        Ok(Introduction { life, time, age: Life::age(uptime), ordered, retention, refuses })
    }
}

/// The three leading numbers of a version such as `1.6.18_beta`.
fn parse_version(text: &str) -> Option<(u64, u64, u64)> {
    let mut parts = text.splitn(3, '.');
    let mut next = || {
        let part = parts.next()?;
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().ok()
    };
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn introduce(lines: &[&str]) -> Result<Introduction> {
        let mut handshake = Handshake::default();
        for line in lines {
            if handshake.line(line.as_bytes())? {
                break;
            }
        }
        handshake.finish()
    }

    const GOOD: [&str; 7] = [
        "STAT pid 5",
        "STAT uptime 100",
        "STAT time 1100",
        "STAT version 1.6.18",
        "END",
        "STAT cas_enabled yes",
        "END",
    ];

    fn with(replaced: usize, line: &'static str) -> Result<Introduction> {
        let mut lines = GOOD;
        lines[replaced] = line;
        introduce(&lines)
    }

    #[test]
    fn a_fit_server_tells_its_life() {
        let known = introduce(&GOOD).unwrap();
        let life = Life { boot: 1000, pid: 5 };
        let (age, retention) = (Duration::from_secs(97), Retention::Nothing);
        let (time, ordered, refuses) = (1100, true, false);
        assert_eq!(known, Introduction { life, time, age, ordered, retention, refuses });
    }

    #[test]
    fn unfit_servers_are_refused_with_a_reason() {
        for (version, fit) in [
            ("1.6.12", false),
            ("1.5.22", false),
            ("1.6.13", true),
            ("1.6.45_beta2", true),
            ("1.7.0", true),
            ("2.0.0-rc1", true),
            ("", false),
            ("1.6", false),
            ("x.y.z", false),
        ] {
            let line: &'static str = Box::leak(format!("STAT version {version}").into_boxed_str());
            assert_eq!(with(3, line).is_ok(), fit, "{version}");
        }
        assert!(with(5, "STAT cas_enabled no").unwrap_err().to_string().contains("-C"));
        assert!(with(0, "ERROR").is_err());
        let crowded = with(0, "ERROR Too many open connections").unwrap_err();
        assert!(crowded.kind() == ErrorKind::Unreachable && crowded.is_crowded());
        assert!(with(2, "STAT time x").is_err());
    }

    #[test]
    fn a_server_is_as_old_as_its_uptime_proves() {
        for (uptime, age) in [("STAT uptime 0", 0), ("STAT uptime 3", 0), ("STAT uptime 61", 58)] {
            assert_eq!(with(1, uptime).unwrap().age, Duration::from_secs(age), "{uptime}");
        }
    }

    #[test]
    fn newer_servers_are_known_to_give_versions_out_of_order() {
        for (version, ordered) in
            [("1.6.13", true), ("1.6.23", true), ("1.6.24", false), ("1.7.0", false)]
        {
            let line: &'static str = Box::leak(format!("STAT version {version}").into_boxed_str());
            assert_eq!(with(3, line).unwrap().ordered, ordered, "{version}");
        }
    }

    #[test]
    fn what_a_full_server_keeps_is_known() {
        let temporary = ["STAT temp_lru yes", "STAT temporary_ttl 62"];
        let more = ["STAT evictions on", "STAT slab_reassign no", "END"];
        let known = introduce(&[&GOOD[..6], &temporary, &more].concat()).unwrap();
        assert_eq!((known.retention, known.refuses), (Retention::UpTo(62), true));
    }

    proptest! {
        #[test]
        fn any_lines_can_be_read_and_only_a_whole_introduction_is_believed(
            lines in vec("(STAT (pid|uptime|time|version|cas_enabled) [ -~]{0,24})|END|[ -~]{0,40}", 0..16), raw: Vec<u8>,
        ) {
            let mut handshake = Handshake::default();
            let _ = Handshake::default().line(&raw);
            for line in &lines {
                if !matches!(handshake.line(line.as_bytes()), Ok(false)) {
                    break;
                }
            }
            let said = |name: &str| lines.iter().any(|line| line.starts_with(&format!("STAT {name} ")));
            let whole = ["pid", "uptime", "time", "version", "cas_enabled"].iter().all(|name| said(name));
            prop_assert!(handshake.finish().is_err() || whole);
        }

        #[test]
        fn a_version_is_as_old_as_its_numbers(numbers: (u32, u32, u32), tail in "([_-][ -~]{0,8})?") {
            let (major, minor, patch) = numbers;
            let parsed = parse_version(&format!("{major}.{minor}.{patch}{tail}"));
            prop_assert_eq!(parsed, Some((major.into(), minor.into(), patch.into())));
        }
    }
}
