//! Whether a server is suitable for locks.

use std::collections::HashMap;
use std::time::Duration;

use super::schema::{Engine, TABLE};
use crate::store::admin::Finding;
use crate::store::admin::Verdict::{Bad, Good, Note, Warning};

/// What is asked of the server.
pub(super) const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version',\
    'version_comment','read_only','innodb_flush_log_at_trx_commit','sync_binlog','log_bin',\
    'wsrep_on','max_connections','max_allowed_packet','binlog_format')";
pub(super) const STATUS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected',\
    'wsrep_cluster_size','wsrep_ready','Slaves_connected')";
pub(super) const OLDEST_TRANSACTION: &str = "SELECT COALESCE(MAX(TIMESTAMPDIFF(SECOND,trx_started,NOW())),0) FROM information_schema.INNODB_TRX";

/// A server with fewer free connections than this should allow more.
const FEW_CONNECTIONS: u64 = 20;
/// A transaction that is older than this, in seconds, keeps the server from removing old rows.
const OLD_TRANSACTION: u64 = 60;
/// More rows than locks and lists usually have.
const MANY_ROWS: u64 = 1_000_000;
/// A request of the largest value takes less.
const ENOUGH_FOR_A_PACKET: u64 = 4 * 1024 * 1024;

/// What the server answered.
pub(super) struct Facts {
    pub(super) variables: HashMap<String, String>,
    pub(super) status: HashMap<String, String>,
    /// The age of the oldest transaction, in seconds, if it may be seen.
    pub(super) oldest: Option<u64>,
    /// How many rows the table has.
    pub(super) rows: Option<u64>,
    pub(super) engine: Engine,
    pub(super) lease: Duration,
}

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![
        version(facts),
        role(facts),
        table(facts),
        durability(facts),
        packets(facts),
        cluster(facts),
        connections(facts),
    ];
    found.extend(replicas(facts));
    found.push(transactions(facts));
    found
}

impl Facts {
    fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.variable(name).parse().ok()
    }

    fn status(&self, name: &str) -> u64 {
        self.status.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.variable(name).to_ascii_uppercase().as_str(), "ON" | "1")
    }
}

fn version(facts: &Facts) -> Finding {
    let version = facts.variable("version");
    let is_mariadb = version.contains("MariaDB");
    let name = if is_mariadb { "MariaDB" } else { "MySQL" };
    Finding::new("version", Good, format!("{name} {}", version.split('-').next().unwrap_or("")))
}

fn role(facts: &Facts) -> Finding {
    let read_only = facts.variable("read_only").to_ascii_uppercase();
    if matches!(read_only.as_str(), "" | "OFF" | "0") {
        return Finding::new("role", Good, "takes writes");
    }
    Finding::new("role", Bad, "is read-only")
        .mend("name the primary, or set read_only to OFF")
        .fatal()
}

fn table(facts: &Facts) -> Finding {
    let engine = facts.engine.name();
    match facts.rows {
        None => Finding::new("table", Note, format!("{TABLE} is not there yet: the first lock creates it")),
        Some(rows) if rows > MANY_ROWS => {
            Finding::new("table", Warning, format!("{TABLE} ({engine}) has {rows} rows"))
                .mend("use fewer names, or shorter lifetimes of lists: rows are removed an hour after their end")
        }
        Some(rows) => Finding::new("table", Good, format!("{TABLE} ({engine}) has {rows} rows")),
    }
}

fn durability(facts: &Facts) -> Finding {
    if facts.engine == Engine::Memory {
        return Finding::new(
            "durability",
            Note,
            "the table is in memory: a restart of the server frees all locks, while their holders may continue",
        );
    }
    let of_log = match facts.number("innodb_flush_log_at_trx_commit") {
        Some(1 | 3) => {
            return Finding::new(
                "durability",
                Good,
                "each lock is on the disk before it is granted (innodb_flush_log_at_trx_commit=1)",
            );
        }
        Some(2) => {
            "innodb_flush_log_at_trx_commit=2: locks survive a crash of the server, and a power failure loses \
             those of the last second"
        }
        _ => {
            "innodb_flush_log_at_trx_commit=0: a crash of the server loses the locks of the last second, which \
             may then be granted twice"
        }
    };
    Finding::new("durability", Note, of_log)
        .mend("SET GLOBAL innodb_flush_log_at_trx_commit=1, unless speed matters more")
}

fn packets(facts: &Facts) -> Finding {
    match facts.number("max_allowed_packet") {
        Some(bytes) if bytes < ENOUGH_FOR_A_PACKET => Finding::new(
            "packets",
            Warning,
            format!("may have {bytes} bytes: records of large semaphores do not fit"),
        )
        .mend("SET GLOBAL max_allowed_packet=16777216"),
        _ => Finding::new("packets", Good, "are large enough"),
    }
}

fn cluster(facts: &Facts) -> Finding {
    if !facts.is_on("wsrep_on") {
        return Finding::new("cluster", Good, "there is none (wsrep_on is off)");
    }
    let nodes = facts.status("wsrep_cluster_size");
    let is_ready =
        facts.status.get("wsrep_ready").is_some_and(|ready| ready.eq_ignore_ascii_case("ON"));
    if facts.engine == Engine::Memory {
        return Finding::new("cluster", Bad, "Galera does not replicate MEMORY tables")
            .mend("leave engine=MEMORY out of the URL")
            .fatal();
    }
    if !is_ready {
        return Finding::new("cluster", Bad, "this node of a Galera cluster takes no statements")
            .mend("look at wsrep_cluster_status")
            .fatal();
    }
    let said = format!(
        "Galera with {nodes} nodes, which can lose committed transactions: a lock may then be granted twice"
    );
    Finding::new("cluster", Warning, said)
        .mend("name a server without Galera, or let the resource check the fence")
}

fn replicas(facts: &Facts) -> Option<Finding> {
    let replicas = facts.status("slaves_connected");
    (replicas > 0).then(|| {
        Finding::new(
            "replicas",
            Warning,
            format!(
                "{replicas}: replication is asynchronous, so a failover can grant a lock twice"
            ),
        )
        .mend("let the resource check the fence, or do not fail over")
    })
}

fn connections(facts: &Facts) -> Finding {
    let most = facts.number("max_connections").unwrap_or(0);
    let left = most.saturating_sub(facts.status("threads_connected"));
    let said = format!("{left} of {most} are left");
    if left < FEW_CONNECTIONS.min(most / 2) {
        return Finding::new("connections", Warning, format!("{said}: late clients are refused"))
            .mend(format!("SET GLOBAL max_connections={}", most.saturating_mul(4)));
    }
    Finding::new("connections", Good, said)
}

fn transactions(facts: &Facts) -> Finding {
    match facts.oldest {
        None => Finding::new(
            "transactions",
            Good,
            "of other users are not visible to this one (PROCESS)",
        ),
        Some(age) if age > OLD_TRANSACTION.max(facts.lease.as_secs()) => Finding::new(
            "transactions",
            Warning,
            format!(
                "the oldest one is {age} s old: old versions of rows cannot be removed meanwhile"
            ),
        )
        .mend("look for it in information_schema.INNODB_TRX"),
        Some(_) => Finding::new("transactions", Good, "none is old"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::admin::Verdict;

    fn facts(fields: &[(&str, &str)]) -> Facts {
        let fields: HashMap<String, String> =
            fields.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Facts {
            variables: fields.clone(),
            status: fields,
            oldest: Some(100),
            rows: Some(0),
            engine: Engine::InnoDb,
            lease: Duration::from_secs(30),
        }
    }

    fn verdict(what: &str, fields: &[(&str, &str)]) -> Verdict {
        let found = all(&facts(fields));
        found.iter().find(|finding| finding.what == what).unwrap().verdict
    }

    /// Since 2026 the releases of MySQL are numbered by their year.
    #[test]
    fn versions_are_shown_as_they_are() {
        let shown = |text: &str| version(&facts(&[("version", text)])).said;
        assert_eq!(shown("26.7.0"), "MySQL 26.7.0");
        assert_eq!(shown("8.4.3-commercial"), "MySQL 8.4.3");
        assert_eq!(shown("10.11.6-MariaDB-0+deb12u1"), "MariaDB 10.11.6");
    }

    #[test]
    fn settings_are_rated() {
        assert_eq!(verdict("role", &[("read_only", "ON")]), Bad);
        assert_eq!(verdict("role", &[("read_only", "OFF")]), Good);
        let flush = "innodb_flush_log_at_trx_commit";
        assert_eq!(verdict("durability", &[(flush, "0")]), Note);
        assert_eq!(verdict("durability", &[(flush, "1")]), Good);
        assert_eq!(verdict("packets", &[("max_allowed_packet", "1048576")]), Warning);
        assert_eq!(verdict("cluster", &[("wsrep_on", "ON")]), Bad);
        assert_eq!(verdict("cluster", &[("wsrep_on", "ON"), ("wsrep_ready", "ON")]), Warning);
        assert_eq!(verdict("replicas", &[("slaves_connected", "1")]), Warning);
        assert_eq!(
            verdict("connections", &[("max_connections", "10"), ("threads_connected", "9")]),
            Warning
        );
        assert_eq!(verdict("transactions", &[]), Warning);
    }
}
