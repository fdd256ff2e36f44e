//! Findings from a server's own statistics and settings.

use std::time::Duration;

use super::text::Stats;
use crate::clock::brief;
use crate::store::admin::Finding;
use crate::store::admin::Verdict::{Bad, Good, Note, Warning};
use crate::store::memcached::GUARANTEES;
use crate::store::memcached::retention::{Retention, Settings};

/// The oldest memcached whose delete by cas is correct.
const OLDEST: [u64; 3] = [1, 6, 13];
/// The first release without the security faults that its notes, of May 2026, list.
const SAFE: [u64; 3] = [1, 6, 42];
/// The `temporary_ttl` that semaphores need: they are kept for a day after their last use, and an
/// hour makes up for what memlock does not know of the server's clock.
const SEMAPHORE: u64 = 25 * 3600;
/// From this share of its memory on, a server that never evicts is about to refuse locks.
const ALMOST_FULL: f64 = 0.8;
/// Fewer free connections than this are used up by a few more programs.
const FEW_CONNECTIONS: u64 = 64;

pub(super) fn all(stats: &Stats, settings: &Stats, lease: Duration) -> Vec<Finding> {
    let retention = retention(stats, settings);
    vec![
        version(stats),
        cas(settings),
        evictions(retention, lease),
        evicted(stats, retention.keeps(ttl(lease))),
        memory(stats, retention),
        flush(settings),
        uptime(stats),
        connections(stats),
        keys(settings),
    ]
}

/// What the server keeps when its memory is full.
fn retention(stats: &Stats, settings: &Stats) -> Retention {
    let mut read = Settings::default();
    stats.iter().chain(settings).for_each(|(name, value)| read.note(name, value));
    read.retention()
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
    let is_from = |release: [u64; 3]| numbers.len() == 3 && numbers.as_slice() >= &release[..];
    if is_from(SAFE) {
        return Finding::new("version", Good, format!("memcached {shown}"));
    }
    if is_from(OLDEST) {
        let faults =
            "releases before 1.6.42 have known security faults: any client can crash the server";
        return Finding::new("version", Note, format!("memcached {shown}; {faults}"))
            .mend("let only your own hosts reach it, and upgrade it, unless your distribution has mended them");
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
    let (needed, leases) = (ttl(lease), brief(lease));
    let spare = |spared| format!("spare what lives for at most {spared} s");
    let bad = |said: String| {
        Finding::new("evictions", Bad, said)
            .mend(format!(
                "-M (and no ext_path) for a server of its own; or where a cache is on it too, \
                 -o temporary_ttl={needed},no_slab_reassign: temporary_ttl alone does not protect \
                 items in memory that the server reassigns"
            ))
            .flag("-M")
    };
    match retention {
        Retention::All => {
            Finding::new("evictions", Good, "are off (-M): a lock is never pushed out of memory")
        }
        Retention::UpTo(spared) if spared >= needed.max(SEMAPHORE) => {
            Finding::new("evictions", Good, format!("{}: locks and semaphores", spare(spared)))
        }
        Retention::UpTo(spared) if spared >= needed => Finding::new(
            "evictions",
            Note,
            format!(
                "{}: locks with leases of {leases}, but not semaphores, which are kept for a day \
                 (temporary_ttl={SEMAPHORE})",
                spare(spared)
            ),
        ),
        Retention::UpTo(spared) => bad(format!(
            "{}, and a lease of {leases} takes {needed} s: such a lock can be pushed out of memory, \
             and granted twice",
            spare(spared)
        )),
        Retention::Nothing => {
            bad("are on: when memory is full, a lock can be pushed out of it, and granted twice"
                .to_owned())
        }
    }
}

/// `keeps`: whether the server never evicts a lock to store something else.
fn evicted(stats: &Stats, keeps: bool) -> Finding {
    // The server counts what it drops when it moves memory apart from the rest.
    let [evicted, dropped] =
        ["evictions", "slab_reassign_evictions_nomem"].map(|name| number(stats, name).unwrap_or(0));
    let all = evicted.saturating_add(dropped);
    let uptime = brief(Duration::from_secs(number(stats, "uptime").unwrap_or(0)));
    if all == 0 {
        return Finding::new("evicted", Good, "nothing was pushed out of memory so far");
    }
    if keeps && dropped == 0 {
        return Finding::new("evicted", Note, format!("{all} items, none of them a lock"));
    }
    let said = format!(
        "{all} items were pushed out of memory in {uptime}: locks may have been among them"
    );
    Finding::new("evicted", Bad, said).mend(if keeps {
        "-o no_slab_reassign, and no `slabs reassign` by hand; and more memory by -m"
    } else {
        "-M as above; and more memory by -m"
    })
}

fn memory(stats: &Stats, retention: Retention) -> Finding {
    let (used, limit) =
        (number(stats, "bytes").unwrap_or(0), number(stats, "limit_maxbytes").unwrap_or(0));
    let share = if limit == 0 { 0.0 } else { used as f64 / limit as f64 };
    let said = format!("{:.0} % of {} MiB is used", share * 100.0, limit >> 20);
    if share < ALMOST_FULL {
        return Finding::new("memory", Good, said);
    }
    if retention == Retention::All {
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

    fn stats(pairs: &[(&str, &str)]) -> Stats {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn leases_are_judged_by_what_the_server_is_told_to_keep() {
        let verdict = |spared: &str, lease| {
            let settings = [
                ("evictions", "on"),
                ("temp_lru", "yes"),
                ("temporary_ttl", spared),
                ("slab_reassign", "no"),
            ];
            let finding =
                evictions(retention(&stats(&[]), &stats(&settings)), Duration::from_secs(lease));
            (finding.verdict, finding.mend.unwrap_or_default())
        };
        assert_eq!(verdict("62", 60).0, Note);
        let (bad, mend) = verdict("61", 60);
        assert!(bad == Bad && mend.contains("temporary_ttl=62,no_slab_reassign"), "{mend}");
        assert_eq!(verdict("89999", 60).0, Note);
        assert_eq!(verdict("90000", 60).0, Good);
        assert_eq!(verdict("90000", 100_000).0, Bad);
    }

    /// Whether items are moved to a file shows in the one reply, and `-M` in the other.
    #[test]
    fn a_server_that_moves_items_to_a_file_is_bad_although_it_refuses_when_full() {
        let refusing = stats(&[("evictions", "off")]);
        for (more, verdict) in [("curr_items", Good), ("extstore_page_allocs", Bad)] {
            let found = all(&stats(&[(more, "0")]), &refusing, Duration::from_secs(60));
            let finding = found.iter().find(|finding| finding.what == "evictions").unwrap();
            assert_eq!(finding.verdict, verdict, "{more}");
        }
    }

    #[test]
    fn a_server_that_is_running_out_of_something_is_told_of_more() {
        let full = stats(&[("bytes", "63000000"), ("limit_maxbytes", "67108864")]);
        let finding = memory(&full, Retention::All);
        assert_eq!((finding.verdict, finding.flags), (Warning, vec!["-m 128".to_owned()]));
        assert_eq!(memory(&full, Retention::UpTo(90)).verdict, Note);
        let busy = stats(&[("max_connections", "1024"), ("curr_connections", "1000")]);
        assert_eq!(
            (connections(&busy).verdict, connections(&busy).flags),
            (Warning, vec!["-c 4096".to_owned()])
        );
        let evicted_some = stats(&[("evictions", "7"), ("uptime", "100")]);
        assert_eq!(evicted(&evicted_some, false).verdict, Bad);
        assert_eq!(evicted(&evicted_some, true).verdict, Note);
        let dropped = stats(&[("evictions", "0"), ("slab_reassign_evictions_nomem", "3")]);
        assert_eq!(evicted(&dropped, true).verdict, Bad);
    }

    #[test]
    fn old_servers_are_bad_and_say_so() {
        for (number, verdict) in [
            ("1.6.12", Bad),
            ("1.5.22", Bad),
            ("1.6.13", Note),
            ("1.6.41", Note),
            ("1.6.42", Good),
            ("1.6.45_beta", Good),
            ("2.0.0", Good),
            ("x", Bad),
        ] {
            assert_eq!(version(&stats(&[("version", number)])).verdict, verdict, "{number}");
        }
    }
}
