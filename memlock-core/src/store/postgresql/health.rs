//! Whether a PostgreSQL is fit for locks.

use super::about::About;
use super::errors;
use super::schema::Schema;
use super::standbys::Clocks;
use super::wire::Rows;
use crate::store::admin::Finding;
use crate::store::admin::Verdict::{Bad, Good, Note, Warning};

/// A server with fewer free connections than this should allow more.
const FEW_CONNECTIONS: i64 = 20;
/// A snapshot that is so old, in seconds, keeps many old versions of rows.
const OLD_SNAPSHOT: i64 = 10;

/// What [`Facts`] are read from.
pub(super) fn questions() -> String {
    "SELECT current_setting('server_version'), current_setting('fsync'),
        current_setting('synchronous_commit'), current_setting('max_connections'),
        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
        current_setting('superuser_reserved_connections'),
        (SELECT count(*) FROM pg_stat_replication),
        (SELECT pid || ' ' || greatest(extract(epoch FROM clock_timestamp() - xact_start), 0)::bigint
            FROM pg_stat_activity
            WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
            AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 1),
        (SELECT gid || ' ' || greatest(extract(epoch FROM clock_timestamp() - prepared), 0)::bigint
            FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 1),
        current_setting('synchronous_standby_names')"
        .to_owned()
}

/// The answers.
#[derive(Debug, Default)]
pub(super) struct Facts {
    version: String,
    fsync: String,
    commits: String,
    most_connections: i64,
    connections: i64,
    reserved: i64,
    replicas: i64,
    /// The process of the oldest snapshot, and its age in seconds.
    oldest: Option<(String, i64)>,
    /// The same of a prepared transaction.
    prepared: Option<(String, i64)>,
    synchronous: String,
}

impl Facts {
    pub(super) fn parse(rows: Rows) -> Option<Facts> {
        let [row] = <[_; 1]>::try_from(rows).ok()?;
        let [
            version,
            fsync,
            commits,
            most,
            used,
            reserved,
            replicas,
            oldest,
            prepared,
            synchronous,
        ] = <[Option<String>; 10]>::try_from(row).ok()?;
        let number = |text: Option<String>| text?.parse::<i64>().ok();
        let aged = |text: Option<String>| {
            let text = text?;
            let (who, age) = text.rsplit_once(' ')?;
            Some((who.to_owned(), age.parse().ok()?))
        };
        Some(Facts {
            version: version?,
            fsync: fsync?,
            commits: commits?,
            most_connections: number(most)?,
            connections: number(used)?,
            reserved: number(reserved)?,
            replicas: number(replicas)?,
            oldest: aged(oldest),
            prepared: aged(prepared),
            synchronous: synchronous.unwrap_or_default(),
        })
    }
}

/// `clocks`: those of the standbys.
pub(super) fn all(
    about: &About,
    facts: &Facts,
    clocks: Clocks,
    is_direct: bool,
    schema: &Schema,
) -> Vec<Finding> {
    let mut found = vec![
        Finding::new("version", Good, format!("PostgreSQL {}", facts.version.escape_debug())),
        role(about),
        tables(about, schema),
        disk(about, facts, schema),
        clocks.add_to(replicas(facts)),
        snapshots(facts),
        pooler(is_direct),
        connections(facts),
    ];
    if about.is_durable.is_some() {
        found.push(functions(about, schema));
    }
    if about.is_durable.is_some() || about.strangers.is_some() {
        found.push(owner(about));
    }
    found
}

fn functions(about: &About, schema: &Schema) -> Finding {
    if !about.is_whole {
        return Finding::new(
            "functions",
            Note,
            "or tables are missing: the next lock creates them, if its user may",
        );
    }
    if about.is_current {
        return Finding::new("functions", Good, "are those of this memlock, or of a later one");
    }
    let said = "are of an earlier memlock, or were changed: fences can fall after an older copy is restored, and \
                users who may create functions in a schema of the search path of memlock's users may have \
                them run with the rights of these";
    Finding::new("functions", Bad, said).mend(if about.may_upgrade {
        "nothing: the next lock that is taken with this URL replaces them. Run doctor again"
            .to_owned()
    } else {
        schema.how_to_upgrade()
    })
}

fn owner(about: &About) -> Finding {
    if let Some(strangers) = &about.superusers_strangers {
        let strangers = errors::shown(strangers);
        let said = format!(
            "{strangers} could have functions run with all rights: this user is, or can become, a superuser, and is \
             refused locks"
        );
        return Finding::new("owner", Bad, said).mend("log in as another user").fatal();
    }
    let Some(strangers) = &about.strangers else {
        let said =
            "is this user, a role that it is a member of, an owner of the database, or a superuser";
        return Finding::new("owner", Good, said);
    };
    let said = format!(
        "{} can have functions run with the rights of memlock's users, and is neither this user, nor an owner of \
         the database, nor a superuser: it must be trusted as much",
        errors::shown(strangers)
    );
    Finding::new("owner", Note, said)
}

fn role(about: &About) -> Finding {
    if about.is_standby {
        return Finding::new("role", Bad, "is a standby, which takes no writes")
            .mend("name its primary")
            .fatal();
    }
    if about.is_read_only {
        return Finding::new("role", Bad, "takes no writes (default_transaction_read_only is on)")
            .mend("turn that off for memlock's user")
            .fatal();
    }
    Finding::new("role", Good, "is a primary")
}

fn tables(about: &About, schema: &Schema) -> Finding {
    let name = schema.name();
    match about.is_durable {
        None => Finding::new("tables", Note, "are not there yet: the first lock creates them"),
        Some(is_durable) if is_durable != schema.is_durable => {
            let (is, says) = if is_durable { ("logged", "no") } else { ("UNLOGGED", "yes") };
            Finding::new(
                "tables",
                Bad,
                format!("in the schema {name} are {is}, and the URL has durable={says}"),
            )
            .mend("let all clients have the same durable= in their URLs")
            .fatal()
        }
        Some(true) => Finding::new("tables", Good, "are logged: locks survive a crash"),
        Some(false) => Finding::new(
            "tables",
            Note,
            "are not logged: a crash of the server, or of one of its processes, loses all locks",
        ),
    }
}

fn disk(about: &About, facts: &Facts, schema: &Schema) -> Finding {
    if !about.is_durable.unwrap_or(schema.is_durable) {
        return Finding::new("disk", Good, "is not waited for");
    }
    if facts.fsync != "on" {
        return Finding::new(
            "disk",
            Bad,
            "fsync is off: a power failure loses locks, and may damage the server",
        )
        .mend("fsync = on")
        .flag("-c fsync=on");
    }
    let commits = if facts.commits == "off" { "on" } else { facts.commits.as_str() };
    Finding::new(
        "disk",
        Good,
        format!("is waited for (synchronous_commit = {})", commits.escape_debug()),
    )
}

fn replicas(facts: &Facts) -> Finding {
    match facts.replicas {
        0 => Finding::new("replicas", Good, "there are none"),
        count if facts.synchronous.is_empty() => Finding::new(
            "replicas",
            Warning,
            format!("{count}, none of them synchronous: a failover can grant a lock twice"),
        )
        .mend("let the resource check the fence, or have durable=yes and a synchronous standby"),
        count => Finding::new(
            "replicas",
            Note,
            format!(
                "{count}, of which some are synchronous: with durable=yes, locks survive a failover to those"
            ),
        ),
    }
}

fn snapshots(facts: &Facts) -> Finding {
    let what = |(who, age): &(String, i64), what: &str| {
        (*age >= OLD_SNAPSHOT)
            .then(|| format!("{what} {} has been open for {age} s", who.escape_debug()))
    };
    let session =
        facts.oldest.as_ref().and_then(|oldest| what(oldest, "the transaction of process"));
    let prepared =
        facts.prepared.as_ref().and_then(|oldest| what(oldest, "the prepared transaction"));
    let found: Vec<String> = session.into_iter().chain(prepared).collect();
    if found.is_empty() {
        return Finding::new("snapshots", Good, "none is old");
    }
    Finding::new(
        "snapshots",
        Warning,
        format!("{}: meanwhile locks that are often taken become slow", found.join(", and ")),
    )
    .mend("end it: SELECT pg_terminate_backend(process), or COMMIT PREPARED; or wait")
}

fn pooler(is_direct: bool) -> Finding {
    if is_direct {
        return Finding::new("pooler", Good, "there is none in between");
    }
    Finding::new("pooler", Note, "there is one in between, such as PgBouncer")
}

fn connections(facts: &Facts) -> Finding {
    let most = facts.most_connections - facts.reserved;
    let left = (most - facts.connections).max(0);
    let said = format!("{left} of {most} are left");
    if left < FEW_CONNECTIONS.min(most / 2) {
        return Finding::new("connections", Warning, format!("{said}: late clients are refused"))
            .mend("raise max_connections, or put PgBouncer in front");
    }
    Finding::new("connections", Good, said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::admin::Verdict;

    fn facts() -> Facts {
        let row = ["15.4", "on", "on", "100", "7", "3", "0", "", "", ""];
        Facts::parse(vec![row.map(|text| Some(text.to_owned())).to_vec()]).unwrap()
    }

    #[test]
    fn what_is_unfit_is_told() {
        assert_eq!(connections(&facts()).verdict, Good);
        assert_eq!(connections(&Facts { connections: 90, ..facts() }).verdict, Warning);
        assert_eq!(snapshots(&facts()).verdict, Good);
        let old = Facts { oldest: Some(("4711".to_owned(), 3600)), ..facts() };
        assert!(snapshots(&old).said.contains("4711"));
        assert_eq!(replicas(&Facts { replicas: 1, ..facts() }).verdict, Warning);
        let verdict = |facts: &Facts, is_durable| -> Verdict {
            let schema = Schema::new("memlock", is_durable).unwrap();
            let kind = if is_durable { "p" } else { "u" };
            let about =
                ["7", "f", "150000", "off", "read committed", kind, "", "", "", "t", "t", "t"];
            let about = about.map(|text| Some(text.to_owned()).filter(|text| !text.is_empty()));
            let about = About::parse(vec![about.to_vec()]).unwrap();
            disk(&about, facts, &schema).verdict
        };
        let lax = Facts { fsync: "off".to_owned(), ..facts() };
        assert_eq!((verdict(&lax, true), verdict(&lax, false)), (Bad, Good));
        assert_eq!(verdict(&facts(), true), Good);
    }
}
