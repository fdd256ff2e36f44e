//! Whether a Redis is suitable for locks, by its `INFO`.

use std::collections::HashMap;

use super::replicas::{self, Replica};
use super::retention::Retention;
use crate::store::admin::Finding;
use crate::store::admin::Verdict::{Bad, Good, Note, Warning};

/// A server with fewer free connections than this should allow more.
const FEW_CONNECTIONS: u64 = 50;

/// `asked`: the replicas whose clocks were asked for.
pub(super) fn all(info: &HashMap<String, String>, asked: &[Replica]) -> Vec<Finding> {
    vec![
        version(info),
        role(info),
        evictions(info),
        persistence(info),
        replicas::finding(number(info, "connected_slaves"), asked),
        connections(info),
    ]
}

fn text<'a>(info: &'a HashMap<String, String>, name: &str) -> &'a str {
    info.get(name).map_or("", String::as_str)
}

fn number(info: &HashMap<String, String>, name: &str) -> u64 {
    text(info, name).parse().unwrap_or(0)
}

fn version(info: &HashMap<String, String>) -> Finding {
    let version = text(info, "redis_version").escape_debug();
    Finding::new(
        "version",
        Good,
        match info.get("valkey_version") {
            Some(valkey) => format!("Valkey {} (as Redis {version})", valkey.escape_debug()),
            None => format!("Redis {version}"),
        },
    )
}

fn role(info: &HashMap<String, String>) -> Finding {
    if text(info, "role") == "master" {
        return Finding::new("role", Good, "is a primary");
    }
    Finding::new("role", Bad, "is a replica, on which nothing is granted")
        .mend("name its primary")
        .fatal()
}

fn evictions(info: &HashMap<String, String>) -> Finding {
    let policy = text(info, "maxmemory_policy");
    let evicted = number(info, "evicted_keys");
    match (Retention::of(policy, text(info, "maxmemory")), policy) {
        (Retention::Evicts(policy), _) => Finding::new(
            "evictions",
            Bad,
            format!(
                "{policy} evicts locks when memory is full, which are then granted twice ({evicted} keys were evicted so far)"
            ),
        )
        .mend("--maxmemory-policy noeviction, on a server of its own if this one is a cache")
        .flag("--maxmemory-policy noeviction"),
        (_, "noeviction") => {
            Finding::new("evictions", Good, "are off (noeviction): a lock is never evicted")
        }
        (_, policy) => Finding::new(
            "evictions",
            Good,
            format!(
                "do not happen, since maxmemory is not set; with it, {} may evict locks",
                policy.escape_debug()
            ),
        ),
    }
}

fn persistence(info: &HashMap<String, String>) -> Finding {
    if text(info, "aof_enabled") == "1" {
        return Finding::new(
            "persistence",
            Note,
            "appendonly is on: locks survive a restart, except for those of the last moment (appendfsync)",
        );
    }
    Finding::new(
        "persistence",
        Note,
        "appendonly is off: a restart loses the locks that were granted since the last snapshot, or all",
    )
}

fn connections(info: &HashMap<String, String>) -> Finding {
    let (most, used) = (number(info, "maxclients"), number(info, "connected_clients"));
    let left = most.saturating_sub(used);
    let said = format!("{left} of {most} are left");
    if left < FEW_CONNECTIONS.min(most / 2) {
        return Finding::new("connections", Warning, format!("{said}: late clients are refused"))
            .mend(format!("--maxclients {}", most.saturating_mul(4)))
            .flag(format!("--maxclients {}", most.saturating_mul(4)));
    }
    Finding::new("connections", Good, said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::admin::Verdict;

    fn verdict(what: &str, fields: &[(&str, &str)]) -> Verdict {
        let info =
            fields.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let found = all(&info, &[]);
        found.iter().find(|finding| finding.what == what).unwrap().verdict
    }

    #[test]
    fn a_policy_that_evicts_is_bad_once_memory_is_limited() {
        for (policy, limit, is) in [
            ("noeviction", "0", Good),
            ("noeviction", "100", Good),
            ("allkeys-lru", "0", Good),
            ("allkeys-lru", "100", Bad),
            ("volatile-ttl", "100", Bad),
        ] {
            let fields = [("maxmemory_policy", policy), ("maxmemory", limit)];
            assert_eq!(verdict("evictions", &fields), is, "{policy} {limit}");
        }
    }

    #[test]
    fn replicas_are_told() {
        assert_eq!(verdict("role", &[("role", "slave")]), Bad);
        assert_eq!(verdict("role", &[("role", "master")]), Good);
        assert_eq!(verdict("replicas", &[("connected_slaves", "1")]), Warning);
        assert_eq!(
            verdict("connections", &[("maxclients", "10"), ("connected_clients", "9")]),
            Warning
        );
    }
}
