//! `memlock show`: what there is by a name, and who has it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use memlock_core::Client;
use memlock_core::Waiter;
use memlock_core::lease::MIN_LEASE;
use memlock_core::mutex::Owner;
use memlock_core::semaphore::{Holder, Status as Permits};
use serde_json::{Map, Value, json};

use crate::args::Show;
use crate::exit::{Status, Trouble};
use crate::out::{Look, Out, shown};
use crate::when::{self, brief, date};

/// What there is by one name.
struct Found {
    owner: Option<Owner>,
    lock_waiters: Vec<Waiter>,
    semaphore: Option<(Permits, Vec<Waiter>)>,
    ids: Option<u64>,
}

pub(crate) fn show(url: &str, args: &Show) -> Result<Status, Trouble> {
    let client = Client::connect(url)?;
    let found = look(&client, &args.name)?;
    let mut out = Out::new();
    if args.json {
        out.line(json(&client, &args.name, &found))?;
    } else {
        out.table(&table(&args.name, &found))?;
    }
    Ok(Status::OK)
}

fn look(client: &Client, name: &OsStr) -> Result<Found, Trouble> {
    let name = name.as_bytes();
    let mutex = client.mutex(name, MIN_LEASE)?;
    let owner = mutex.owner()?;
    let lock_waiters = mutex.waiters()?;
    let semaphore = client.open_semaphore(name, MIN_LEASE)?;
    let semaphore = match semaphore.status()? {
        Some(status) => Some((status, semaphore.waiters()?)),
        None => None,
    };
    let ids = client.distinct_list(name)?.count()?;
    Ok(Found { owner, lock_waiters, semaphore, ids })
}

type Rows = Vec<Vec<(Look, String)>>;

fn table(name: &OsStr, found: &Found) -> Rows {
    let mut rows = Rows::new();
    let name = shown(name.as_bytes());
    let others = found.semaphore.is_some() || found.ids.is_some();
    if found.owner.is_some() || !found.lock_waiters.is_empty() || !others {
        row(&mut rows, "lock", Look::Bold, &name);
        match &found.owner {
            None => row(&mut rows, "state", Look::Good, "free"),
            Some(owner) => {
                row(&mut rows, "state", Look::Warning, "held");
                row(&mut rows, "by", Look::Plain, &holder_of(owner));
                if let Some(record) = &owner.record {
                    row(&mut rows, "since", Look::Plain, &since(record.since));
                    row(&mut rows, "fence", Look::Plain, &format!("at most {}", owner.newest_fence));
                }
                row(&mut rows, "remaining", Look::Plain, &remaining(owner.remaining));
            }
        }
        waiting(&mut rows, &found.lock_waiters);
    }
    if let Some((status, waiters)) = &found.semaphore {
        row(&mut rows, "semaphore", Look::Bold, &name);
        let available = format!("{} of {}", status.available, status.permits);
        row(
            &mut rows,
            "available",
            if status.available > 0 { Look::Good } else { Look::Warning },
            &available,
        );
        for holder in &status.holders {
            let Holder { permits, host, pid, since: at, remaining, token, .. } = holder;
            let text = format!(
                "{permits} by {}, process {pid}, since {}, for {} at most, token {token}",
                shown(host.as_bytes()),
                since(*at),
                brief(*remaining)
            );
            row(&mut rows, "held", Look::Plain, &text);
        }
        waiting(&mut rows, waiters);
    }
    if let Some(ids) = found.ids {
        row(&mut rows, "list", Look::Bold, &name);
        row(&mut rows, "ids", Look::Plain, &format!("{ids} given out"));
    }
    rows
}

fn row(rows: &mut Rows, what: &str, look: Look, text: &str) {
    rows.push(vec![(Look::Dim, what.to_owned()), (look, text.to_owned())]);
}

fn waiting(rows: &mut Rows, waiters: &[Waiter]) {
    for (place, waiter) in waiters.iter().enumerate() {
        let mut text =
            format!("{}. {}", place + 1, bell(waiter).unwrap_or_else(|| "without a bell".to_owned()));
        if waiter.permits != 1 {
            text += &format!(", for {} permits", waiter.permits);
        }
        if waiter.priority != 0 {
            text += &format!(", priority {}", waiter.priority);
        }
        row(rows, "waiting", Look::Plain, &text);
    }
}

/// Who holds a lock, for people.
pub(crate) fn holder_of(owner: &Owner) -> String {
    match &owner.record {
        Some(record) => format!("{}, process {}", shown(record.host.as_bytes()), record.pid),
        None => {
            let start: Vec<u8> = owner.value.iter().copied().take(60).collect();
            format!("a plain client, which wrote {}", shown(&start))
        }
    }
}

fn since(unix: u64) -> String {
    let ago = when::unix_now().saturating_sub(Duration::from_secs(unix));
    format!("{} ({} ago)", date(unix), brief(Duration::from_secs(ago.as_secs())))
}

/// What the server keeps yet.
pub(crate) fn remaining(remaining: Option<Duration>) -> String {
    remaining.map_or_else(|| "for ever".to_owned(), |left| format!("{} at most", brief(left)))
}

fn bell(waiter: &Waiter) -> Option<String> {
    waiter.bell.map(|address| address.to_string())
}

fn json(client: &Client, name: &OsStr, found: &Found) -> Value {
    let semaphore = found.semaphore.as_ref().map(|(status, waiters)| {
        let mut value = json_of_permits(status);
        value.insert("waiters".to_owned(), json_of_waiters(waiters));
        value
    });
    let mut lock = found.owner.as_ref().map(json_of_owner).unwrap_or_default();
    lock.insert("held".to_owned(), found.owner.is_some().into());
    lock.insert("waiters".to_owned(), json_of_waiters(&found.lock_waiters));
    json!({
        "name": name.to_string_lossy(),
        "key": client.keys().lock(name.as_bytes()).as_str(),
        "lock": lock,
        "semaphore": semaphore,
        "list": found.ids.map(|ids| json!({ "ids": ids })),
    })
}

fn json_of_waiters(waiters: &[Waiter]) -> Value {
    let waiters = waiters.iter().map(
        |waiter| json!({ "bell": bell(waiter), "priority": waiter.priority, "permits": waiter.permits }),
    );
    waiters.collect()
}

fn json_of_owner(owner: &Owner) -> Map<String, Value> {
    let mut map = json_of_lock(&owner.value, owner.remaining);
    map.insert("fence_at_most".to_owned(), owner.record.as_ref().map(|_| owner.newest_fence).into());
    map
}

/// A lock's item, as JSON.
pub(crate) fn json_of_lock(value: &[u8], remaining: Option<Duration>) -> Map<String, Value> {
    let mut map = Map::new();
    let record = memlock_core::OwnerRecord::parse(value);
    map.insert("remaining".to_owned(), remaining.map(|left| left.as_secs()).into());
    map.insert("host".to_owned(), record.as_ref().map(|record| record.host.clone()).into());
    map.insert("pid".to_owned(), record.as_ref().map(|record| record.pid).into());
    map.insert("since".to_owned(), record.as_ref().map(|record| date(record.since)).into());
    map.insert("token".to_owned(), record.as_ref().map(|record| record.token.to_string()).into());
    if record.is_none() {
        map.insert("value".to_owned(), String::from_utf8_lossy(value).into());
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
