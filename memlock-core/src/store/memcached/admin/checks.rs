//! Findings from a server's own statistics and settings.

use std::time::Duration;

use super::text::Stats;
use crate::clock::brief;
use crate::store::admin::Finding;
use crate::store::admin::Verdict::{Bad, Good, Note, Warning};
use crate::store::memcached::GUARANTEES;

/// The oldest memcached whose delete by cas is correct.
const OLDEST: [u64; 3] = [1, 6, 13];
/// A semaphore is kept for a day after its last use, as `Semaphore` documents.
const SEMAPHORE: Duration = Duration::from_secs(24 * 3600);
/// From this share of its memory on, a server that never evicts is about to refuse locks.
const ALMOST_FULL: f64 = 0.8;
/// Fewer free connections than this are used up by a few more programs.
const FEW_CONNECTIONS: u64 = 64;

pub(super) fn all(stats: &Stats, settings: &Stats, lease: Duration) -> Vec<Finding> {
    let retention = Retention::of(settings, lease);
    vec![
        version(stats),
        cas(settings),
        evictions(retention, lease),
        evicted(stats, retention),
        memory(stats, retention),
        flush(settings),
        uptime(stats),
        connections(stats),
        keys(settings),
    ]
}

/// What the server does with locks when its memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retention {
    /// The server never evicts an item.
    Always,
    /// The server never evicts an item with a TTL of at most this many seconds, such as a lock.
    Locks(u64),
    /// The server may evict locks. `spared`: the longest TTL of items that it spares; `needed`: the
    /// TTL that it would have to spare.
    Not { spared: Option<u64>, needed: u64 },
}

impl Retention {
    fn of(settings: &Stats, lease: Duration) -> Retention {
        let needed = ttl(lease);
        let spared = (text(settings, "temp_lru") == "yes")
            .then(|| number(settings, "temporary_ttl"))
            .flatten();
        match spared {
            _ if text(settings, "evictions") == "off" => Retention::Always,
            Some(spared) if spared >= needed => Retention::Locks(spared),
            _ => Retention::Not { spared, needed },
        }
    }
}

/// The TTL, in seconds, that the server is given for such a lease.
fn ttl(lease: Duration) -> u64 {
    GUARANTEES.covering(lease).as_secs()
}

fn version(stats: &Stats) -> Finding {
    let version = text(stats, "version");
    let shown = version.escape_debug();
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u64>);
    let numbers: Vec<u64> = numbers.by_ref().take(3).flatten().collect();
    if numbers.len() == 3 && numbers.as_slice() >= OLDEST.as_slice() {
        return Finding::new("version", Good, format!("memcached {shown}"));
    }
    Finding::new("version", Bad, format!("memcached {shown} does not delete by cas correctly"))
        .mend("upgrade it to 1.6.13 or later")
        .fatal()
}

fn cas(settings: &Stats) -> Finding {
    if text(settings, "cas_enabled") == "yes" {
        return Finding::new("cas", Good, "is enabled, so that owners can prove what they own");
    }
    Finding::new("cas", Bad, "is disabled (-C): nobody can prove ownership")
        .mend("start it without -C")
        .fatal()
}

fn evictions(retention: Retention, lease: Duration) -> Finding {
    match retention {
        Retention::Always => {
            Finding::new("evictions", Good, "are off (-M): a lock is never pushed out of memory")
        }
        Retention::Locks(spared) if spared >= ttl(SEMAPHORE) => Finding::new(
            "evictions",
            Good,
            format!("spare what lives for at most {spared} s: locks and semaphores"),
        ),
        Retention::Locks(spared) => Finding::new(
            "evictions",
            Note,
            format!(
                "spare what lives for at most {spared} s: locks with leases of {}, but not \
                 semaphores, which are kept for a day",
                brief(lease)
            ),
        ),
        Retention::Not { spared, needed } => {
            let said = match spared {
                Some(spared) => format!(
                    "spare what lives for at most {spared} s, and a lease of {} takes {needed} s: \
                     such a lock can be pushed out of memory, and granted twice",
                    brief(lease)
                ),
                None => {
                    "are on: when memory is full, a lock can be pushed out of it, and granted twice"
                        .to_owned()
                }
            };
            Finding::new("evictions", Bad, said)
                .mend(format!(
                    "-M for a server of its own; or -o temporary_ttl={needed} where a cache is on \
                     it too"
                ))
                .flag("-M")
        }
    }
}

fn evicted(stats: &Stats, retention: Retention) -> Finding {
    let evicted = number(stats, "evictions").unwrap_or(0);
    let uptime = Duration::from_secs(number(stats, "uptime").unwrap_or(0));
    match (evicted, retention) {
        (0, _) => Finding::new("evicted", Good, "nothing was pushed out of memory so far"),
        (_, Retention::Not { .. }) => Finding::new(
            "evicted",
            Bad,
            format!(
                "{evicted} items were pushed out of memory in {}: locks may have been among them",
                brief(uptime)
            ),
        )
        .mend("-M as above; and more memory by -m"),
        _ => Finding::new("evicted", Note, format!("{evicted} items, none of them a lock")),
    }
}

fn memory(stats: &Stats, retention: Retention) -> Finding {
    let (used, limit) =
        (number(stats, "bytes").unwrap_or(0), number(stats, "limit_maxbytes").unwrap_or(0));
    let share = if limit == 0 { 0.0 } else { used as f64 / limit as f64 };
    let said = format!("{:.0} % of {} MiB is used", share * 100.0, limit >> 20);
    if share < ALMOST_FULL {
        return Finding::new("memory", Good, said);
    }
    if retention == Retention::Always {
        return Finding::new(
            "memory",
            Warning,
            format!("{said}: when it is full, locks are refused"),
        )
        .mend(format!("-m {} or more", (limit >> 20) * 2))
        .flag(format!("-m {}", (limit >> 20) * 2));
    }
    Finding::new("memory", Note, said)
}

fn flush(settings: &Stats) -> Finding {
    if text(settings, "flush_enabled") == "no" {
        return Finding::new("flush_all", Good, "is off (-F): nobody can remove all locks at once");
    }
    Finding::new("flush_all", Warning, "is on: one command removes all locks").mend("-F").flag("-F")
}

fn uptime(stats: &Stats) -> Finding {
    let uptime = number(stats, "uptime").unwrap_or(0);
    let said = format!("it has been up for {}", brief(Duration::from_secs(uptime)));
    if uptime < 60 {
        return Finding::new(
            "uptime",
            Note,
            format!(
                "{said}: what was held before is lost, unless a guard lets holders put it back"
            ),
        );
    }
    Finding::new("uptime", Good, said)
}

fn connections(stats: &Stats) -> Finding {
    let (most, used) = (
        number(stats, "max_connections").unwrap_or(0),
        number(stats, "curr_connections").unwrap_or(0),
    );
    let rejected = number(stats, "rejected_connections").unwrap_or(0);
    let left = most.saturating_sub(used);
    let said = format!("{left} of {most} are left");
    let more = most.saturating_mul(4).max(1024);
    if left < FEW_CONNECTIONS.min(most / 2) || left < most / 10 {
        return Finding::new("connections", Warning, format!("{said}: who comes late is refused"))
            .mend(format!("-c {more}"))
            .flag(format!("-c {more}"));
    }
    if rejected > 0 {
        return Finding::new(
            "connections",
            Note,
            format!("{said}; {rejected} were rejected at some time"),
        );
    }
    Finding::new("connections", Good, said)
}

fn keys(settings: &Stats) -> Finding {
    let switched_off = |setting| text(settings, setting) == "no";
    if switched_off("dump_enabled") || switched_off("lru_crawler") {
        return Finding::new(
            "list of keys",
            Note,
            "is off (-X or -o no_lru_crawler): `memlock ls` shows nothing",
        );
    }
    Finding::new("list of keys", Good, "can be had, for `memlock ls`")
}

fn text<'a>(stats: &'a Stats, name: &str) -> &'a str {
    stats.get(name).map_or("", String::as_str)
}

fn number(stats: &Stats, name: &str) -> Option<u64> {
    stats.get(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::admin::Verdict;

    fn stats(pairs: &[(&str, &str)]) -> Stats {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn leases_are_judged_by_what_the_server_is_told_to_keep() {
        let spared = |seconds: &str| {
            stats(&[("evictions", "on"), ("temp_lru", "yes"), ("temporary_ttl", seconds)])
        };
        let minute = Duration::from_secs(60);
        assert_eq!(Retention::of(&spared("62"), minute), Retention::Locks(62));
        assert_eq!(
            Retention::of(&spared("61"), minute),
            Retention::Not { spared: Some(61), needed: 62 }
        );
        assert_eq!(Retention::of(&stats(&[("evictions", "off")]), minute), Retention::Always);
        let idle = stats(&[("evictions", "on"), ("temp_lru", "no"), ("temporary_ttl", "600")]);
        assert_eq!(Retention::of(&idle, minute), Retention::Not { spared: None, needed: 62 });
    }

    #[test]
    fn a_server_that_is_running_out_of_something_is_told_of_more() {
        let full = stats(&[("bytes", "63000000"), ("limit_maxbytes", "67108864")]);
        let finding = memory(&full, Retention::Always);
        assert_eq!((finding.verdict, finding.flags), (Warning, vec!["-m 128".to_owned()]));
        assert_eq!(memory(&full, Retention::Locks(90)).verdict, Note);
        let busy = stats(&[("max_connections", "1024"), ("curr_connections", "1000")]);
        assert_eq!(
            (connections(&busy).verdict, connections(&busy).flags),
            (Warning, vec!["-c 4096".to_owned()])
        );
        let evicted_some = stats(&[("evictions", "7"), ("uptime", "100")]);
        assert_eq!(
            evicted(&evicted_some, Retention::Not { spared: None, needed: 62 }).verdict,
            Verdict::Bad
        );
        assert_eq!(evicted(&evicted_some, Retention::Always).verdict, Note);
    }

    #[test]
    fn old_servers_are_bad_and_say_so() {
        for (number, verdict) in [
            ("1.6.12", Bad),
            ("1.5.22", Bad),
            ("1.6.13", Good),
            ("1.6.45_beta", Good),
            ("2.0.0", Good),
            ("x", Bad),
        ] {
            assert_eq!(version(&stats(&[("version", number)])).verdict, verdict, "{number}");
        }
    }
}
