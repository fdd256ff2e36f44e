//! `memlock ls`: all that lives on the servers.

use memlock_core::lease::MIN_LEASE;
use memlock_core::name::{Family, Key, Named};
use memlock_core::semaphore::Status as Permits;
use memlock_core::store::admin::{self, Content};
use memlock_core::wait::entries;
use memlock_core::{Client, OwnerRecord};
use serde_json::{Map, Value, json};

use crate::args::Ls;
use crate::connect::{Url, connect, is_quorum};
use crate::duration::{brief_size, date};
use crate::exit::{CliError, Status};
use crate::out::{Out, Style, complain};
use crate::show::{complained, json_of_lock, json_of_permits, remaining};
use crate::text::shown;

/// One thing that lives.
struct Entry {
    server: String,
    key: String,
    named: Named,
    value: admin::Value,
    /// `None` when the queue cannot be read.
    waiting: Option<usize>,
    /// Of a list that can be read.
    ids: Option<u64>,
}

pub(crate) fn ls(url: &Url, args: &Ls) -> Result<Status, CliError> {
    let client = connect(url)?;
    let servers = client.nodes();
    let (mut entries, mut errors, mut unread) = (Vec::new(), Vec::new(), 0);
    for place in 0..servers.len() {
        match entries_on(&client, place, &mut errors) {
            Ok(more) => entries.extend(more),
            Err(error) => {
                unread += 1;
                errors.push(error);
            }
        }
    }
    if unread == servers.len() {
        return Err(errors.remove(0));
    }
    entries.sort_by(|a, b| {
        (a.named.family, &a.named.name, &a.key).cmp(&(b.named.family, &b.named.name, &b.key))
    });
    if is_quorum(&client) {
        entries = of_a_majority(&client, entries)?;
    }
    let mut out = Out::new();
    if args.json {
        let entries: Value = entries.iter().map(Entry::json).collect();
        out.json(&entries)?;
    } else if !entries.is_empty() {
        let head = ["KIND", "NAME", "STATE", "BY", "SINCE", "REMAINING", "WAITING"];
        let mut rows = vec![head.map(|title| (Style::Dim, title.to_owned())).to_vec()];
        rows.extend(entries.iter().map(Entry::row));
        out.table(&rows)?;
    }
    Ok(complained(errors.iter()))
}

/// The locks that a majority has: one entry for each, of what its members have of it. `entries` are
/// sorted by their keys.
fn of_a_majority(client: &Client, entries: Vec<Entry>) -> Result<Vec<Entry>, CliError> {
    let mut locks: Vec<Entry> = Vec::new();
    let mut holder = None;
    let mut key = None;
    for entry in entries {
        let Some(name) = &entry.named.name else { continue };
        if key.as_ref() != Some(&entry.key) {
            key = Some(entry.key.clone());
            holder = client.mutex(name, MIN_LEASE)?.owner()?.and_then(|owner| owner.record);
        }
        let record = entry.value.0.bytes().and_then(OwnerRecord::parse);
        let is_its = record.zip(holder.as_ref()).is_some_and(|(its, of)| its.token == of.token);
        match locks.last_mut().filter(|lock| lock.key == entry.key) {
            // The queue is on one of them.
            Some(lock) => lock.waiting = lock.waiting.max(entry.waiting),
            None if is_its => locks.push(entry),
            None => {}
        }
    }
    Ok(locks)
}

/// All that lives on one server. What is there and cannot be read goes to `errors`.
fn entries_on(
    client: &Client,
    place: usize,
    errors: &mut Vec<CliError>,
) -> Result<Vec<Entry>, CliError> {
    if let Some(missing) = client.missing(place) {
        complain(&missing);
        return Ok(Vec::new());
    }
    let mut admin = client.admin(place)?;
    let server = client.nodes().swap_remove(place).name;
    let keys = admin.keys(&|key| client.keys().read(key).is_some())?;
    // The waiters are in an item beside it.
    let queues: Vec<String> = keys.iter().map(|key| Key::queue_of(key)).collect();
    let (values, queues) = (admin.values(&keys)?, admin.values(&queues)?);
    let mut entries = Vec::new();
    for ((key, value), queue) in keys.into_iter().zip(values).zip(queues) {
        let (Some(named), Some(value)) = (client.keys().read(&key), value) else { continue };
        let ids = match (&named.name, named.family) {
            (Some(name), Family::List) if value.0.bytes().is_some() => {
                ids(client, name).or_else(|error| match error.status {
                    // One item, and not the server.
                    Status::PROTOCOL => {
                        errors.push(error);
                        Ok(None)
                    }
                    _ => Err(error),
                })?
            }
            _ => None,
        };
        let waiting = match queue {
            None => Some(0),
            Some((queue, _)) => queue.bytes().map(|queue| entries::waiters(queue).count()),
        };
        entries.push(Entry { server: server.clone(), key, named, value, waiting, ids });
    }
    Ok(entries)
}

fn ids(client: &Client, name: &[u8]) -> Result<Option<u64>, CliError> {
    Ok(client.distinct_list(name)?.count()?)
}

impl Entry {
    fn name(&self) -> String {
        self.named.name.as_ref().map_or_else(|| self.key.clone(), |name| shown(name))
    }

    fn permits(&self) -> Option<Permits> {
        Permits::read(self.value.0.bytes()?, self.value.1.unwrap_or(MIN_LEASE))
    }

    fn kind(&self) -> &'static str {
        match self.named.family {
            Family::Lock => "lock",
            Family::Semaphore => "semaphore",
            Family::List => "list",
        }
    }

    fn row(&self) -> Vec<(Style, String)> {
        let (value, left) = &self.value;
        let (state, by, since) = match self.named.family {
            Family::Lock => match value.bytes().and_then(OwnerRecord::parse) {
                Some(record) => {
                    let by = format!("{}:{}", shown(record.host.as_bytes()), record.pid);
                    let state = if record.reserved_for.is_some() { "reserved" } else { "held" };
                    (state.to_owned(), by, date(record.since))
                }
                None => ("held".to_owned(), "a plain client".to_owned(), String::new()),
            },
            Family::Semaphore => match self.permits() {
                Some(status) => {
                    let by = status
                        .holders
                        .iter()
                        .map(|holder| format!("{}:{}", shown(holder.host.as_bytes()), holder.pid));
                    let by: Vec<String> = by.collect();
                    (
                        format!("{} of {} free", status.available, status.permits),
                        by.join(" "),
                        String::new(),
                    )
                }
                None => ("not memlock's".to_owned(), String::new(), String::new()),
            },
            Family::List => (
                self.ids.map(|ids| format!("{ids} ids")).unwrap_or_default(),
                String::new(),
                String::new(),
            ),
        };
        let by = match value {
            Content::TooLarge(length) => {
                format!("a value of {}, which was not read", brief_size(*length))
            }
            Content::Bytes(_) => by,
        };
        let waiting = match self.waiting {
            Some(0) => String::new(),
            Some(waiting) => waiting.to_string(),
            None => "not read".to_owned(),
        };
        let cells =
            [self.kind().to_owned(), self.name(), state, by, since, remaining(*left), waiting];
        let mut row: Vec<(Style, String)> = cells
            .map(|text| (Style::Normal, if text.is_empty() { "-".to_owned() } else { text }))
            .to_vec();
        row[1].0 = Style::Bold;
        row
    }

    fn json(&self) -> Value {
        let (value, left) = &self.value;
        let mut map = match self.named.family {
            Family::Lock => json_of_lock(value.bytes(), *left),
            Family::Semaphore => self.permits().as_ref().map(json_of_permits).unwrap_or_default(),
            Family::List => Map::new(),
        };
        let name = self.named.name.as_ref().map(|name| String::from_utf8_lossy(name).into_owned());
        for (field, said) in [
            ("kind", json!(self.kind())),
            ("name", json!(name)),
            ("key", json!(self.key)),
            ("server", json!(self.server)),
            ("remaining", json!(left.map(|left| left.as_secs()))),
            ("waiting", json!(self.waiting)),
        ] {
            map.insert(field.to_owned(), said);
        }
        if let Content::TooLarge(length) = value {
            map.insert("unread_bytes".to_owned(), (*length).into());
        }
        if let Some(ids) = self.ids {
            map.insert("ids".to_owned(), ids.into());
        }
        map.into()
    }
}
