//! What a server tells about itself, whether it is suitable for locks, and the settings of the
//! session.

use std::time::Duration;

use super::errors;
use super::settings::Settings;
use super::wire::{Complaint, Rows, Wire, nonsense};
use crate::error::{Error, ErrorKind, Result};
use crate::store::remote::Reading;
use crate::store::{Epoch, Failure};

/// The oldest version that is supported, as `server_version_num`.
const OLDEST: u32 = 120_000;

/// One life of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Life(pub(super) i64);

impl Life {
    pub(super) fn epoch(self) -> Epoch {
        Epoch::new(self.0 as u64, 0)
    }
}

/// The result of the introduction.
#[derive(Clone, Debug)]
pub(super) struct Introduction {
    pub(super) life: Life,
    pub(super) time: Reading,
    /// What all clients of the server have agreed on.
    pub(super) config: Option<Vec<u8>>,
    /// Whether all requests of the connection are run by one process of the server: no pooler is in
    /// between that passes them to several.
    pub(super) is_direct: bool,
}

/// The first columns are for a connection, and the last ones for tools.
pub(super) fn questions(schema: &str) -> String {
    format!(
        "SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('server_version_num'),
            current_setting('transaction_read_only'), current_setting('transaction_isolation'),
            (SELECT relpersistence FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                WHERE nspname = '{schema}' AND relname = 'items'),
            (SELECT count(DISTINCT proname) FROM pg_proc AS p
                JOIN pg_namespace AS n ON n.oid = p.pronamespace
                WHERE nspname = '{schema}'
                AND proname IN ('timeline_1', 'live_1', 'apply_1', 'run_1')) = 4"
    )
}

/// The answers to [`questions`].
#[derive(Debug)]
pub(super) struct About {
    pub(super) process: i32,
    pub(super) is_standby: bool,
    pub(super) version: u32,
    pub(super) is_read_only: bool,
    isolation: String,
    /// Whether the tables are logged; `None` if there are none.
    pub(super) is_durable: Option<bool>,
    pub(super) is_whole: bool,
}

impl About {
    pub(super) fn parse(rows: Rows) -> Option<About> {
        let [row] = <[_; 1]>::try_from(rows).ok()?;
        let [process, standby, version, read_only, isolation, persistence, whole] =
            <[Option<String>; 7]>::try_from(row).ok()?;
        Some(About {
            process: process?.parse().ok()?,
            is_standby: standby? == "t",
            version: version?.parse().ok()?,
            is_read_only: read_only? == "on",
            isolation: isolation?,
            is_durable: persistence.map(|kind| kind == "p"),
            is_whole: whole? == "t",
        })
    }
}

/// Examines the server, creates the schema if it is missing, and sets up the session. `process`: as
/// the login told it. `row_patience`: for how long a row may be locked by others.
pub(super) fn introduce(
    wire: &mut Wire,
    settings: &Settings,
    process: i32,
    row_patience: i32,
) -> Result<Introduction> {
    let schema = &settings.schema;
    let about = about(wire, settings)?;
    let is_direct = about.process == process;
    check(&about, is_direct)?;
    if !about.is_whole || about.is_durable.is_none() {
        create(wire, settings)?;
    }
    let is_durable = match about.is_durable {
        Some(kind) => Some(kind),
        None => self::about(wire, settings)?.is_durable,
    };
    if is_durable != Some(schema.is_durable) {
        return Err(another_kind(settings));
    }
    let sent = wire.socket.clock().now();
    // A pooler would give the settings of a session to other clients: there they are set for each
    // transaction.
    let set = |name: &str, value: String| match is_direct {
        true => format!("set_config('{name}', {value}, false)"),
        false => "NULL".to_owned(),
    };
    let commits = match schema.is_durable {
        // The levels that wait for a standby as well are left as they are.
        true => "coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on')",
        false => "'off'",
    };
    let text = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED;
        SELECT {}.live_1(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, {}, {}, {},
            {};
        COMMIT",
        schema.quoted(),
        set("lock_timeout", format!("'{row_patience}'")),
        set("default_transaction_isolation", "'read committed'".to_owned()),
        set("synchronous_commit", commits.to_owned()),
        settings.config.as_ref().map_or("NULL".to_owned(), |config| schema.reading(config)),
    );
    let row = ask(wire, settings, &text)?.into_iter().next().ok_or_else(nonsense)?;
    let number = |place: usize| {
        let text = row.get(place).and_then(Option::as_ref);
        text.and_then(|text| text.parse::<i64>().ok()).ok_or_else(nonsense)
    };
    let life = Life(number(0)?);
    let shown = Duration::from_micros(u64::try_from(number(1)?).map_err(|_| nonsense())?);
    let config = row.get(5).and_then(Option::as_ref).map(|text| text.clone().into_bytes());
    Ok(Introduction { life, time: Reading { shown, sent }, config, is_direct })
}

pub(super) fn about(wire: &mut Wire, settings: &Settings) -> Result<About> {
    let rows = ask(wire, settings, &questions(settings.schema.name()))?;
    About::parse(rows).ok_or_else(nonsense)
}

/// Runs statements; an error of the server is an error.
pub(super) fn ask(wire: &mut Wire, settings: &Settings, text: &str) -> Result<Rows> {
    asked(wire.query(text), settings)
}

fn create(wire: &mut Wire, settings: &Settings) -> Result<()> {
    asked(settings.schema.create(wire), settings)
}

fn asked<T>(
    answer: std::result::Result<std::result::Result<T, Complaint>, Failure>,
    settings: &Settings,
) -> Result<T> {
    let answer = answer.map_err(|failure| failure.error)?;
    answer.map_err(|said| errors::of(&said, &settings.schema, &settings.user))
}

fn check(about: &About, is_direct: bool) -> Result<()> {
    if about.version < OLDEST {
        return Err(Error::protocol(format!(
            "The server is PostgreSQL {}, and memlock needs 12 or later: upgrade it.",
            about.version / 10_000
        )));
    }
    if about.is_standby || about.is_read_only {
        let what = if about.is_standby {
            "The server is a standby"
        } else {
            "The server takes no writes of this user (default_transaction_read_only)"
        };
        return Err(Error::new(
            ErrorKind::Unreachable,
            format!("{what}: name the primary in the URL."),
        ));
    }
    if !is_direct && about.isolation != "read committed" {
        return Err(Error::config(format!(
            "Behind a pooler, locks need the isolation level \"read committed\", and this user's default is {:?}: \
             ALTER ROLE … SET default_transaction_isolation = 'read committed', or connect to the server itself.",
            about.isolation
        )));
    }
    Ok(())
}

fn another_kind(settings: &Settings) -> Error {
    let schema = &settings.schema;
    let (has, is, set) = match schema.is_durable {
        true => ("durable=yes", "UNLOGGED: leave that out", "LOGGED"),
        false => ("not durable=yes", "logged: write durable=yes", "UNLOGGED"),
    };
    Error::config(format!(
        "The URL has {has}, and the tables in the schema {:?} are {is}, or name another schema, or, while no lock \
         is held, ALTER TABLE {1}.items SET {set}; ALTER TABLE {1}.life SET {set}.",
        schema.name(),
        schema.quoted(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(standby: &str, version: &str, read_only: &str, isolation: &str) -> About {
        let row = ["7", standby, version, read_only, isolation, "u", "t"];
        About::parse(vec![row.map(|text| Some(text.to_owned())).to_vec()]).unwrap()
    }

    #[test]
    fn unsuitable_servers_are_refused_with_a_reason() {
        let good = about("f", "150018", "off", "read committed");
        assert!(check(&good, false).is_ok() && good.is_durable == Some(false) && good.is_whole);
        assert!(check(&about("f", "150018", "off", "serializable"), true).is_ok());
        for (unfit, why) in [
            (about("t", "150018", "on", "read committed"), "standby"),
            (about("f", "150018", "on", "read committed"), "default_transaction_read_only"),
            (about("f", "110022", "off", "read committed"), "12"),
            (about("f", "150018", "off", "serializable"), "isolation"),
        ] {
            let error = check(&unfit, false).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(About::parse(Vec::new()).is_none());
    }
}
