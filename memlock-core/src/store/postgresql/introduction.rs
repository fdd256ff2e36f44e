//! Whether a server is suitable for locks, the schema, and the settings of the session.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::about::{About, ask, asked};
use super::settings::Settings;
use super::wire::{SEARCH_PATH, Wire, nonsense};
use super::{errors, promises};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Epoch;
use crate::store::remote::{Address, Reading};

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

/// Examines the server, creates the schema if it is missing, and sets up the session. `process`: as
/// the login told it. `row_patience`: for how long a row may be locked by others.
pub(super) fn introduce(
    wire: &mut Wire,
    settings: &Settings,
    process: i32,
    row_patience: i32,
    address: &Address,
) -> Result<Introduction> {
    let schema = &settings.schema;
    wire.lock_timeout = Some(row_patience);
    let mut about = About::of(wire, settings)?;
    let is_direct = about.process == process;
    check(&about, is_direct, settings)?;
    if !about.is_whole {
        asked(schema.create(wire), settings)?;
        // Meanwhile others may have created a part of it.
        about = About::of(wire, settings)?;
        check(&about, is_direct, settings)?;
    }
    if !about.is_current {
        let title = (!is_direct).then(|| address.title(promises::SERVER));
        upgrade(wire, settings, &about, title)?;
    }
    if about.is_durable != Some(schema.is_durable) {
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
    // The search path is for functions of an earlier revision.
    let text = format!(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        SELECT {}.live_1(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, {}, {}, {}, {},
            {}",
        schema.quoted(),
        set("search_path", format!("'{SEARCH_PATH}'")),
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
    let config = row.get(6).and_then(Option::as_ref).map(|text| text.clone().into_bytes());
    Ok(Introduction { life, time: Reading { shown, sent }, config, is_direct })
}

/// Replaces functions of an earlier revision, if the user may. Locks do not depend on it. `pooled`: the
/// title of a server behind a pooler. Where there is none, the session has another search path.
fn upgrade(
    wire: &mut Wire,
    settings: &Settings,
    about: &About,
    pooled: Option<String>,
) -> Result<()> {
    let schema = &settings.schema;
    let why = if about.may_upgrade {
        match schema.upgrade(wire).map_err(|failure| failure.error)? {
            Ok(true) => return Ok(()),
            Ok(false) => "Another session is replacing them, or keeps others from that.".to_owned(),
            Err(said) => {
                format!("They could not be replaced now ({}).", errors::shown(said.text.shown()))
            }
        }
    } else {
        let how = schema.how_to_upgrade();
        format!("The user {:?} may not replace them. {how}", settings.user)
    };
    if let Some(title) = pooled
        && !settings.has_warned.swap(true, Ordering::Relaxed)
    {
        log::warn!(
            "{title}: the functions in the schema {:?} of the database {:?} are of an earlier memlock, or were \
             changed. Users who may create functions in a schema of the search path may have them run with \
             the rights of this user, behind a pooler. {why}",
            schema.name(),
            settings.database
        );
    }
    Ok(())
}

fn check(about: &About, is_direct: bool, settings: &Settings) -> Result<()> {
    if about.version < OLDEST {
        return Err(Error::protocol(format!(
            "The server is PostgreSQL {}, and memlock needs 12 or later: upgrade it.",
            about.version / 10_000
        )));
    }
    if about.is_standby {
        let text = "The server is a standby: name the primary in the URL.";
        return Err(Error::new(ErrorKind::Unreachable, text));
    }
    if about.is_read_only {
        let text = "The server takes no writes of this user: default_transaction_read_only is on. Name the primary in \
                    the URL, or turn that off for the user.";
        return Err(Error::new(ErrorKind::Unreachable, text));
    }
    if !is_direct && about.isolation != "read committed" {
        return Err(Error::config(format!(
            "Behind a pooler, locks need the isolation level \"read committed\", and this user's default is {:?}: \
             ALTER ROLE … SET default_transaction_isolation = 'read committed', or connect to the server itself.",
            about.isolation
        )));
    }
    about.spare_superusers(settings)
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
    use crate::store::url::Url;

    fn settings() -> Settings {
        let mut url = Url::parse("postgresql://u@h/d").unwrap();
        Settings::take(&mut url).unwrap().0
    }

    fn about(columns: [&str; 4]) -> About {
        let [standby, version, read_only, isolation] = columns;
        let row = ["7", standby, version, read_only, isolation, "u", "", "", "", "t", "t", "f"];
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        About::parse(vec![row.map(text).to_vec()]).unwrap()
    }

    #[test]
    fn unsuitable_servers_are_refused_with_a_reason() {
        let good = about(["f", "150018", "off", "read committed"]);
        assert!(check(&good, false, &settings()).is_ok() && good.is_durable == Some(false));
        assert!(good.is_whole && good.is_current && !good.may_upgrade);
        let strict = about(["f", "150018", "off", "serializable"]);
        assert!(check(&strict, true, &settings()).is_ok());
        for (columns, why) in [
            (["t", "150018", "on", "read committed"], "standby"),
            (["f", "150018", "on", "read committed"], "default_transaction_read_only"),
            (["f", "110022", "off", "read committed"], "12"),
            (["f", "150018", "off", "serializable"], "isolation"),
        ] {
            let error = check(&about(columns), false, &settings()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(About::parse(Vec::new()).is_none());
    }
}
