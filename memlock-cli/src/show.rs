//! `memlock show`: what exists by a name, and its holders.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use memlock_core::lease::MIN_LEASE;
use memlock_core::mutex::Owner;
use memlock_core::semaphore::{Holder, Status as Permits};
use memlock_core::{Client, Waiter};
use serde_json::{Map, Value, json};

use crate::args::Show;
use crate::connect::{Url, connect, missing};
use crate::duration::{self, brief, date};
use crate::exit::{CliError, Status};
use crate::out::{Out, Style, complain};
use crate::text::shown;

/// What exists by one name. Each part may be on another server; if one could not be read, the
/// reason is known.
struct Found {
    lock: Result<Option<Owner>, CliError>,
    /// The server recovers: what it does not have may be held all the same.
    may_be_put_back: bool,
    lock_waiters: Result<Vec<Waiter>, CliError>,
    semaphore: Result<Option<Permits>, CliError>,
    semaphore_waiters: Result<Vec<Waiter>, CliError>,
    ids: Result<Option<u64>, CliError>,
}

pub(crate) fn show(url: &Url, args: &Show) -> Result<Status, CliError> {
    let client = connect(url)?;
    let found = match inspect(&client, &args.name)? {
        Found { lock: Err(error), semaphore: Err(_), ids: Err(_), .. } => return Err(error),
        found => found,
    };
    let mut out = Out::new();
    if args.json {
        out.json(&json(&client, &args.name, &found))?;
    } else {
        out.table(&table(&args.name, &found))?;
    }
    Ok(complained(found.unread().into_iter().map(|(_, error)| error)))
}

/// Complains about each thing that could not be read; the status is that of the first one, if there
/// is one.
pub(crate) fn complained<'a>(errors: impl Iterator<Item = &'a CliError>) -> Status {
    errors.fold(Status::OK, |status, error| {
        complain(&error.message);
        if status == Status::OK { error.status } else { status }
    })
}

fn inspect(client: &Client, name: &OsStr) -> Result<Found, CliError> {
    let name = name.as_bytes();
    let mutex = client.mutex(name, MIN_LEASE)?;
    let semaphore = client.open_semaphore(name, MIN_LEASE)?;
    let mut list = client.distinct_list(name)?;
    if let Some(missing) = missing(client) {
        complain(&missing);
        return Ok(Found {
            lock: Ok(None),
            may_be_put_back: false,
            lock_waiters: Ok(Vec::new()),
            semaphore: Ok(None),
            semaphore_waiters: Ok(Vec::new()),
            ids: Ok(None),
        });
    }
    let owner = mutex.owner().map_err(CliError::from);
    let status = semaphore.status().map_err(CliError::from);
    Ok(Found {
        lock_waiters: queue(owner.is_ok(), || mutex.waiters()),
        semaphore_waiters: queue(matches!(status, Ok(Some(_))), || semaphore.waiters()),
        may_be_put_back: mutex.recovery().is_some(),
        lock: owner,
        semaphore: status,
        ids: list.count().map_err(CliError::from),
    })
}

/// Reads a queue, unless what it is for could not be read.
fn queue(
    is_known: bool,
    waiters: impl FnOnce() -> memlock_core::Result<Vec<Waiter>>,
) -> Result<Vec<Waiter>, CliError> {
    if is_known { waiters().map_err(CliError::from) } else { Ok(Vec::new()) }
}

impl Found {
    /// What could not be read, and why.
    fn unread(&self) -> Vec<(&'static str, &CliError)> {
        let parts = [
            ("lock", self.lock.as_ref().err()),
            ("lock waiters", self.lock_waiters.as_ref().err()),
            ("semaphore", self.semaphore.as_ref().err()),
            ("semaphore waiters", self.semaphore_waiters.as_ref().err()),
            ("list", self.ids.as_ref().err()),
        ];
        parts.into_iter().filter_map(|(what, error)| Some((what, error?))).collect()
    }
}

type Rows = Vec<Vec<(Style, String)>>;

fn table(name: &OsStr, found: &Found) -> Rows {
    let mut rows = Rows::new();
    let name = shown(name.as_bytes());
    let others = matches!(found.semaphore, Ok(Some(_))) || matches!(found.ids, Ok(Some(_)));
    let waiters = found.lock_waiters.as_deref().unwrap_or_default();
    if let Ok(owner) = &found.lock
        && (owner.is_some() || !waiters.is_empty() || !others)
    {
        row(&mut rows, "lock", Style::Bold, &name);
        match owner {
            None if found.may_be_put_back => {
                let state = "not known: the server was started anew, and a holder may put it back";
                row(&mut rows, "state", Style::Warning, state);
            }
            None => row(&mut rows, "state", Style::Good, "free"),
            Some(owner) => {
                let reserved =
                    owner.record.as_ref().is_some_and(|record| record.reserved_for.is_some());
                let state = if reserved { "reserved for the next waiter" } else { "held" };
                row(&mut rows, "state", Style::Warning, state);
                row(&mut rows, "by", Style::Normal, &holder_of(owner));
                if let Some(record) = &owner.record {
                    row(&mut rows, "since", Style::Normal, &since(record.since));
                    row(
                        &mut rows,
                        "fence",
                        Style::Normal,
                        &format!("at most {}", owner.newest_fence),
                    );
                }
                row(&mut rows, "remaining", Style::Normal, &remaining(owner.remaining));
            }
        }
        waiting(&mut rows, waiters);
    }
    if let Ok(Some(status)) = &found.semaphore {
        row(&mut rows, "semaphore", Style::Bold, &name);
        let available = format!("{} of {}", status.available, status.permits);
        row(
            &mut rows,
            "available",
            if status.available > 0 { Style::Good } else { Style::Warning },
            &available,
        );
        if found.may_be_put_back {
            let state =
                "none are given yet: the server was started anew, and holders put theirs back";
            row(&mut rows, "state", Style::Warning, state);
        }
        for holder in &status.holders {
            let Holder { permits, host, pid, since: at, remaining, token, .. } = holder;
            let text = format!(
                "{permits} by {}, since {}, for {} at most, token {token}",
                process(host, *pid),
                since(*at),
                brief(*remaining)
            );
            row(&mut rows, "held", Style::Normal, &text);
        }
        waiting(&mut rows, found.semaphore_waiters.as_deref().unwrap_or_default());
    }
    if let Ok(Some(ids)) = found.ids {
        row(&mut rows, "list", Style::Bold, &name);
        row(&mut rows, "ids", Style::Normal, &format!("{ids} given out"));
    }
    rows
}

fn row(rows: &mut Rows, what: &str, style: Style, text: &str) {
    rows.push(vec![(Style::Dim, what.to_owned()), (style, text.to_owned())]);
}

fn waiting(rows: &mut Rows, waiters: &[Waiter]) {
    for (place, waiter) in waiters.iter().enumerate() {
        let mut text = format!(
            "{}. {}",
            place + 1,
            address(waiter).unwrap_or_else(|| "without an address".to_owned())
        );
        if waiter.permits != 1 {
            text += &format!(", for {} permits", waiter.permits);
        }
        if waiter.priority != 0 {
            text += &format!(", priority {}", waiter.priority);
        }
        row(rows, "waiting", Style::Normal, &text);
    }
}

/// The holder of a lock, for people.
pub(crate) fn holder_of(owner: &Owner) -> String {
    match &owner.record {
        Some(record) => process(&record.host, record.pid),
        None => {
            let start: Vec<u8> = owner.value.iter().copied().take(60).collect();
            format!("a plain client, which wrote {}", shown(&start))
        }
    }
}

/// A process of a host, for people.
pub(crate) fn process(host: &str, pid: u32) -> String {
    format!("{}, process {pid}", shown(host.as_bytes()))
}

fn since(unix: u64) -> String {
    let ago = duration::unix_now().saturating_sub(Duration::from_secs(unix));
    format!("{} ({} ago)", date(unix), brief(Duration::from_secs(ago.as_secs())))
}

/// What the server keeps yet.
pub(crate) fn remaining(remaining: Option<Duration>) -> String {
    remaining.map_or_else(|| "for ever".to_owned(), |left| format!("{} at most", brief(left)))
}

fn address(waiter: &Waiter) -> Option<String> {
    waiter.address.map(|address| address.to_string())
}

fn json(client: &Client, name: &OsStr, found: &Found) -> Value {
    let lock = found.lock.as_ref().ok().map(|owner| {
        let mut value = owner.as_ref().map(json_of_owner).unwrap_or_default();
        value.insert("held".to_owned(), owner.is_some().into());
        if found.may_be_put_back {
            value.insert("recovering".to_owned(), true.into());
        }
        value.insert("waiters".to_owned(), json_of_waiters(&found.lock_waiters));
        value
    });
    let semaphore = found.semaphore.as_ref().ok().and_then(Option::as_ref).map(|status| {
        let mut value = json_of_permits(status);
        value.insert("waiters".to_owned(), json_of_waiters(&found.semaphore_waiters));
        value
    });
    let ids = found.ids.as_ref().ok().copied().flatten();
    let unread: Value = found.unread().into_iter().map(|(what, _)| what).collect();
    json!({
        "name": name.to_string_lossy(),
        "key": client.keys().lock(name.as_bytes()).as_str(),
        "lock": lock,
        "semaphore": semaphore,
        "list": ids.map(|ids| json!({ "ids": ids })),
        "unread": unread,
    })
}

/// `null` when they could not be read.
fn json_of_waiters(waiters: &Result<Vec<Waiter>, CliError>) -> Value {
    let Ok(waiters) = waiters else { return Value::Null };
    let waiters = waiters.iter().map(
        |waiter| json!({ "address": address(waiter), "priority": waiter.priority, "permits": waiter.permits }),
    );
    waiters.collect()
}

fn json_of_owner(owner: &Owner) -> Map<String, Value> {
    let mut map = json_of_lock(Some(&owner.value), owner.remaining);
    map.insert(
        "fence_at_most".to_owned(),
        owner.record.as_ref().map(|_| owner.newest_fence).into(),
    );
    map
}

/// A lock's item, as JSON. Its value is not known if it is too large.
pub(crate) fn json_of_lock(
    value: Option<&[u8]>,
    remaining: Option<Duration>,
) -> Map<String, Value> {
    let mut map = Map::new();
    let record = value.and_then(memlock_core::OwnerRecord::parse);
    map.insert("remaining".to_owned(), remaining.map(|left| left.as_secs()).into());
    map.insert("host".to_owned(), record.as_ref().map(|record| record.host.clone()).into());
    map.insert("pid".to_owned(), record.as_ref().map(|record| record.pid).into());
    map.insert("since".to_owned(), record.as_ref().map(|record| date(record.since)).into());
    map.insert("token".to_owned(), record.as_ref().map(|record| record.token.to_string()).into());
    if let Some(waiter) = record.as_ref().and_then(|record| record.reserved_for) {
        map.insert("reserved_for".to_owned(), waiter.to_string().into());
    }
    if record.is_none() {
        map.insert("value".to_owned(), value.map(String::from_utf8_lossy).into());
    }
    map
}

/// A semaphore, as JSON.
pub(crate) fn json_of_permits(status: &Permits) -> Map<String, Value> {
    let holders: Value = status
        .holders
        .iter()
        .map(|holder| {
            json!({
                "permits": holder.permits,
                "host": holder.host,
                "pid": holder.pid,
                "since": date(holder.since),
                "remaining": holder.remaining.as_secs(),
                "token": holder.token.to_string(),
            })
        })
        .collect();
    let mut map = Map::new();
    map.insert("permits".to_owned(), status.permits.into());
    map.insert("available".to_owned(), status.available.into());
    map.insert("holders".to_owned(), holders);
    map
}
