//! A server's replicas, and how far their clocks are from its own. All texts come from servers.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::brief;
use crate::error::Result;
use crate::store::admin::Finding;
use crate::store::admin::Verdict::{Good, Warning};
use crate::store::admin::skew::Skew;
use crate::store::remote::{Address, Place};
use crate::store::said::Said;
use crate::store::url::Secret;

/// How many replicas are asked at most.
const MOST: usize = 8;
/// The longest host name of a replica that is dialled, and the longest text that is shown of it.
const LONGEST_NAME: usize = 128;
const LONGEST_TEXT: usize = 160;

/// A replica whose clock was to be compared.
pub(super) struct Replica {
    name: String,
    /// The difference; or why it is not known.
    skew: std::result::Result<Skew, String>,
}

impl Replica {
    /// One without a difference.
    pub(super) fn unknown(name: String, why: &str) -> Replica {
        Replica { name, skew: Err(why.to_owned()) }
    }

    /// `password`: what must not be shown, although the replica was told it.
    pub(super) fn new(address: &Address, skew: Result<Skew>, password: Option<&Secret>) -> Replica {
        let skew = skew
            .map_err(|error| shown(Said::new(error.sentence(), LONGEST_TEXT, password).shown()));
        Replica { name: address.name().to_owned(), skew }
    }
}

/// The first replicas that `INFO` lists, with their addresses if they can be dialled.
pub(super) fn places(info: &HashMap<String, String>) -> Vec<(String, Option<Place>)> {
    let names = (0..MOST).map(|number| format!("slave{number}"));
    names
        .map_while(|name| {
            let place = place(info.get(&name)?);
            Some((name, place))
        })
        .collect()
}

/// Parses `ip=10.0.0.8,port=6379,state=online,…`.
fn place(line: &str) -> Option<Place> {
    let field = |name| line.split(',').find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
    let (host, port) = (field("ip")?, field("port")?.parse().ok()?);
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_%".contains(&byte);
    let is_good =
        (1..=LONGEST_NAME).contains(&host.len()) && host.bytes().all(is_host) && port != 0;
    is_good.then(|| Place::Tcp(host.to_owned(), port))
}

/// A text for one line of a message.
fn shown(text: &str) -> String {
    let escape = |c: char| match c {
        ' '..='~' => c.to_string(),
        _ => c.escape_unicode().to_string(),
    };
    let text: String = text.trim_end_matches('.').chars().map(escape).collect();
    text.chars().take(LONGEST_TEXT).collect()
}

/// The finding about all of them. `count`: how many there are.
pub(super) fn finding(count: u64, asked: &[Replica]) -> Finding {
    if count == 0 {
        return Finding::new("replicas", Good, "there are none");
    }
    let (mut good, mut wrong, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for Replica { name, skew } in asked {
        match skew {
            Ok(skew) if skew.is_none() => good.push(*skew),
            Ok(skew) => wrong.push(difference(name, *skew)),
            Err(why) => unknown.push(format!("the clock of {name} could not be compared ({why})")),
        }
    }
    let rest = count.saturating_sub(asked.len() as u64);
    if rest > 0 {
        unknown.push(format!("{rest} other clocks were not compared"));
    }
    let mut mend = vec!["let the resource check the fence, or do not fail over"];
    if !wrong.is_empty() {
        mend.push("run an NTP client on the hosts of both");
    }
    if !unknown.is_empty() {
        mend.push("compare those clocks by hand: redis-cli TIME there and here");
    }
    let mut said =
        vec![format!("{count}: replication is asynchronous, so a failover can grant a lock twice")];
    said.extend(agreement(count, &good));
    said.extend(wrong);
    said.extend(unknown);
    Finding::new("replicas", Warning, said.join("; ")).mend(mend.join("; "))
}

/// What is said of clocks that agree. `count`: of how many replicas they are.
fn agreement(count: u64, good: &[Skew]) -> Option<String> {
    let within = good.iter().map(|skew| skew.tolerance).reduce(f64::max)?;
    let within = Duration::try_from_secs_f64(within).unwrap_or(Duration::MAX);
    let whose = match good.len() {
        1 if count == 1 => "its clock agrees".to_owned(),
        1 => "the clock of one agrees".to_owned(),
        all if all as u64 == count => format!("the clocks of all {all} agree"),
        some => format!("the clocks of {some} agree"),
    };
    Some(format!("{whose} with this server's within {}", brief(within)))
}

fn difference(name: &str, skew: Skew) -> String {
    let meaning = if skew.ahead > 0.0 { "leases end so much earlier" } else { "fences can fall" };
    let by = skew.in_words();
    format!("the clock of {name} is {by} this server's: after a failover to it, {meaning}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::store::remote::Settings;

    fn info(lines: &[&str]) -> HashMap<String, String> {
        let name = |number| format!("slave{number}");
        lines.iter().enumerate().map(|(number, line)| (name(number), line.to_string())).collect()
    }

    fn address(host: &str) -> Address {
        let timeout = Duration::from_secs(1);
        let settings = Settings { connect_timeout: timeout, io_timeout: timeout, pool: 1 };
        Address::new(Place::Tcp(host.to_owned(), 6379), settings)
    }

    fn replica(host: &str, ahead: f64) -> Replica {
        Replica::new(&address(host), Ok(Skew { ahead, tolerance: 1.001 }), None)
    }

    fn refused(text: &str, password: &str) -> Replica {
        let error = Error::protocol(text).at("Redis at h:6379");
        Replica::new(&address("h"), Err(error), Some(&Secret(password.to_owned())))
    }

    #[test]
    fn replicas_are_dialled_at_addresses_and_at_nothing_else() {
        for (line, host, port) in [
            ("ip=10.0.0.8,port=6379,state=online,offset=1,lag=0", "10.0.0.8", 6379),
            ("ip=::1,port=1,state=wait_bgsave", "::1", 1),
            (
                "state=online,port=65535,ip=redis-1.redis_headless.svc",
                "redis-1.redis_headless.svc",
                65535,
            ),
        ] {
            assert_eq!(place(line), Some(Place::Tcp(host.to_owned(), port)), "{line}");
        }
        let long = format!("ip={},port=1", "a".repeat(LONGEST_NAME + 1));
        for line in [
            "",
            "ip=a",
            "port=1",
            "ip=,port=1",
            "ip=a,port=0",
            "ip=a,port=65536",
            "ip=a,port=-1",
            "ip=a,port=",
            "ip=a b,port=1",
            "ip=a/b,port=1",
            "ip=a@b,port=1",
            "ip=\x1b[2J,port=1",
            "ip=\u{202e},port=1",
            "xip=a,xport=1",
            &long,
        ] {
            assert_eq!(place(line), None, "{line:?}");
        }
        assert_eq!(places(&info(&["ip=a,port=1"; 1000])).len(), MOST);
    }

    #[test]
    fn clocks_that_agree_and_those_that_do_not_are_reported() {
        assert_eq!(finding(0, &[]).verdict, Good);
        for (count, replicas, says) in [
            (1, vec![replica("a", -0.9)], "; its clock agrees with this server's within 1 s"),
            (2, vec![replica("a", 0.9), replica("b", 0.0)], "the clocks of all 2 agree with"),
            (2, vec![replica("a", -29.0), replica("b", 0.0)], "the clock of one agrees with"),
            (3, vec![replica("a", 0.0), replica("b", 0.0)], "the clocks of 2 agree with"),
            (
                1,
                vec![replica("a", -29.2)],
                "the clock of a:6379 is 29 s behind this server's: after a failover to it, fences can fall",
            ),
            (
                1,
                vec![replica("::1", 29.2)],
                "the clock of [::1]:6379 is 29 s ahead of this server's: after a failover to it, leases end so \
                 much earlier",
            ),
            (9, vec![replica("a", 0.0)], "8 other clocks were not compared"),
            (u64::MAX, vec![], "18446744073709551615 other clocks were not compared"),
        ] {
            let finding = finding(count, &replicas);
            assert!(finding.verdict == Warning && finding.said.contains(says), "{finding:?}");
            assert!(finding.said.contains("a failover can grant a lock twice"), "{finding:?}");
            let mend = finding.mend.unwrap();
            assert_eq!(mend.contains("NTP"), finding.said.contains("is 29 s"), "{mend}");
            assert_eq!(
                mend.contains("redis-cli TIME"),
                finding.said.contains("not compared"),
                "{mend}"
            );
        }
    }

    #[test]
    fn the_reason_why_a_clock_is_unknown_is_short_printable_and_without_the_password() {
        let why = |text: &str| refused(text, "geheim").skew.unwrap_err();
        assert_eq!(why("It cannot be connected to."), "It cannot be connected to");
        assert_eq!(why("a\x1b[2J\n\u{202e}"), "a\\u{1b}[2J\\u{a}\\u{202e}");
        assert_eq!(why(&"\0".repeat(1_000_000)).len(), LONGEST_TEXT);
        assert!(!why("-ERR unknown: AUTH geheim").contains("geheim"));
        let escaped = refused("The server replied with \"AUTH ge\\\"heim\".", "ge\"heim");
        assert!(!escaped.skew.unwrap_err().contains("heim"));
        let many: Vec<Replica> = (0..MOST).map(|_| refused(&"\0".repeat(1000), "x")).collect();
        assert!(finding(1000, &many).said.len() < 4096);
        let said = finding(1, &[refused("no.", "x")]).said;
        assert!(said.ends_with("; the clock of h:6379 could not be compared (no)"), "{said}");
    }
}
