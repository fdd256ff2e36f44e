//! `memlock ls`: all that lives on the servers.

use memlock_core::lease::MIN_LEASE;
use memlock_core::name::{Family, Named};
use memlock_core::semaphore::Status as Permits;
use memlock_core::store::Address;
use memlock_core::wait::entries;
use memlock_core::{Client, OwnerRecord};
use serde_json::{Map, Value, json};

use crate::args::Ls;
use crate::exit::{Status, Trouble};
use crate::out::{Look, Out, shown};
use crate::plain::{self, Plain};
use crate::show::{complained, json_of_lock, json_of_permits, remaining};
use crate::when::date;

/// One thing that lives.
struct Entry {
    server: String,
    key: String,
    named: Named,
    value: plain::Value,
    waiting: usize,
    /// Of a list.
    ids: Option<u64>,
}

pub(crate) fn ls(url: &str, args: &Ls) -> Result<Status, Trouble> {
    let client = Client::connect(url)?;
    let servers = plain::servers(&client)?;
    let (mut entries, mut troubles) = (Vec::new(), Vec::new());
    for server in &servers {
        match entries_on(&client, server) {
            Ok(more) => entries.extend(more),
            Err(trouble) => troubles.push(trouble),
        }
    }
    if troubles.len() == servers.len() {
        return Err(troubles.remove(0));
    }
    entries.sort_by(|a, b| {
        (a.named.family, &a.named.name, &a.key).cmp(&(b.named.family, &b.named.name, &b.key))
    });
    let mut out = Out::new();
    if args.json {
        let entries: Value = entries.iter().map(Entry::json).collect();
        out.line(entries)?;
    } else if !entries.is_empty() {
        let head = ["KIND", "NAME", "STATE", "BY", "SINCE", "REMAINING", "WAITING"];
        let mut rows = vec![head.map(|title| (Look::Dim, title.to_owned())).to_vec()];
        rows.extend(entries.iter().map(Entry::row));
        out.table(&rows)?;
    }
    Ok(complained(troubles.iter()))
}

/// All that lives on one server.
fn entries_on(client: &Client, server: &Address) -> Result<Vec<Entry>, Trouble> {
    let mut plain = Plain::connect(server)?;
    let keys = plain.keys(|key| client.keys().read(key).is_some())?;
    // Who waits stands beside it.
    let queues: Vec<String> = keys.iter().map(|key| format!("{key}%wait")).collect();
    let (values, queues) = (plain.values(&keys)?, plain.values(&queues)?);
    let mut entries = Vec::new();
    for ((key, value), queue) in keys.into_iter().zip(values).zip(queues) {
        let (Some(named), Some(value)) = (client.keys().read(&key), value) else { continue };
        let ids = match (&named.name, named.family) {
            (Some(name), Family::List) => client.distinct_list(name)?.count()?,
            _ => None,
        };
        let waiting = queue.map_or(0, |(queue, _)| entries::waiters(&queue).count());
        entries.push(Entry { server: server.name.clone(), key, named, value, waiting, ids });
    }
    Ok(entries)
}

impl Entry {
    fn name(&self) -> String {
        self.named.name.as_ref().map_or_else(|| self.key.clone(), |name| shown(name))
    }

    fn permits(&self) -> Option<Permits> {
        Permits::read(&self.value.0, self.value.1.unwrap_or(MIN_LEASE))
    }

    fn kind(&self) -> &'static str {
        match self.named.family {
            Family::Lock => "lock",
            Family::Semaphore => "semaphore",
            Family::List => "list",
        }
    }

    fn row(&self) -> Vec<(Look, String)> {
        let (value, left) = &self.value;
        let (state, by, since) = match self.named.family {
            Family::Lock => match OwnerRecord::parse(value) {
                Some(record) => {
                    let by = format!("{}:{}", shown(record.host.as_bytes()), record.pid);
                    ("held".to_owned(), by, date(record.since))
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
                    (format!("{} of {} free", status.available, status.permits), by.join(" "), String::new())
                }
                None => ("not memlock's".to_owned(), String::new(), String::new()),
            },
            Family::List => {
                (self.ids.map(|ids| format!("{ids} ids")).unwrap_or_default(), String::new(), String::new())
            }
        };
        let waiting = if self.waiting > 0 { self.waiting.to_string() } else { String::new() };
        let cells = [self.kind().to_owned(), self.name(), state, by, since, remaining(*left), waiting];
        let mut row: Vec<(Look, String)> =
            cells.map(|text| (Look::Plain, if text.is_empty() { "-".to_owned() } else { text })).to_vec();
        row[1].0 = Look::Bold;
        row
    }

    fn json(&self) -> Value {
        let (value, left) = &self.value;
        let mut map = match self.named.family {
            Family::Lock => json_of_lock(value, *left),
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
        if let Some(ids) = self.ids {
            map.insert("ids".to_owned(), ids.into());
        }
        map.into()
    }
}
