//! The requests of tools.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::packets::{Row, Wire};
use super::schema::{Engine, TABLE};
use super::settings::Settings;
use super::statements::{Hex, NEVER, NOW, parse};
use super::{handshake, health};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::store::Failure;
use crate::store::admin::skew::{self, Skew, timed};
use crate::store::admin::{Admin, Content, Finding, Value};

/// How many keys are requested at once, and how many values.
const KEYS_AT_ONCE: usize = 1000;
const VALUES_AT_ONCE: usize = 20;
/// The most bytes of keys that are listed, and what each key takes beyond its own: enough for a million
/// locks.
const MOST_BYTES: usize = 256 * 1024 * 1024;
const OVERHEAD: usize = 64;

/// A tool's own connection.
pub(super) struct Tool {
    wire: Wire,
    title: String,
    settings: Arc<Settings>,
}

impl Tool {
    /// Sets up the session. `title`: the server in messages.
    pub(super) fn introduce(
        mut wire: Wire,
        title: String,
        settings: &Arc<Settings>,
        io_timeout: Duration,
    ) -> Result<Tool> {
        handshake::introduce(&mut wire, settings, io_timeout).map_err(|error| error.at(&title))?;
        Ok(Tool { wire, title, settings: Arc::clone(settings) })
    }

    /// What is missing as long as nothing has been stored.
    pub(super) fn missing(&mut self) -> Result<Option<String>> {
        let found = self.ask(&[handshake::TABLE_FOUND])?.pop();
        Ok(found
            .is_some_and(|rows| rows.is_empty())
            .then(|| format!("There is no table {TABLE} yet: the first lock creates it.")))
    }

    fn ask(&mut self, statements: &[&str]) -> Result<Vec<Vec<Row>>> {
        let asked = handshake::ask(&mut self.wire, &self.settings, statements);
        // These statements change nothing.
        asked.map_err(|error| {
            let error = Failure::unsent(error).error;
            error.at(&self.title)
        })
    }

    /// Names and their values.
    fn named(&mut self, statement: &str) -> Result<HashMap<String, String>> {
        let rows = self.ask(&[statement])?.pop().unwrap_or_default();
        let text = |field: Option<Vec<u8>>| {
            let text = String::from_utf8_lossy(&field.unwrap_or_default()).into_owned();
            text.chars().flat_map(char::escape_debug).collect::<String>()
        };
        let pair = |row: Row| {
            let [name, value] = <[Option<Vec<u8>>; 2]>::try_from(row).ok()?;
            Some((text(name).to_ascii_lowercase(), text(value)))
        };
        Ok(rows.into_iter().filter_map(pair).collect())
    }

    /// The only field of the only row.
    fn number(&mut self, statement: &str) -> Result<Option<u64>> {
        let mut rows = self.ask(&[statement])?;
        Ok(rows.pop().and_then(|rows| parse(rows.into_iter().next()?.into_iter().next()?)))
    }

    fn nonsense(&self) -> Error {
        Error::protocol(format!("{} sent a reply that does not belong to its request.", self.title))
    }
}

impl Admin for Tool {
    fn round_trip(&mut self) -> Result<Duration> {
        let sent = SystemClock.now();
        self.ask(&["DO 1"])?;
        Ok(SystemClock.now().since(sent))
    }

    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        if self.missing()?.is_some() {
            return Ok(Vec::new());
        }
        let (mut last, mut bytes, mut keys) = (Vec::new(), 0, Vec::new());
        loop {
            let rows = self.ask(&[&format!(
                "SELECT name,expires>{NOW} FROM {TABLE} WHERE name>{} ORDER BY name LIMIT {KEYS_AT_ONCE}",
                Hex(&last)
            )])?;
            let rows = rows.into_iter().next().unwrap_or_default();
            let is_end = rows.len() < KEYS_AT_ONCE;
            for row in rows {
                let [Some(key), is_there] =
                    <[Option<Vec<u8>>; 2]>::try_from(row).map_err(|_| self.nonsense())?
                else {
                    return Err(self.nonsense());
                };
                last.clone_from(&key);
                // A key that is no text is none of memlock's.
                if let Ok(key) = String::from_utf8(key)
                    && parse(is_there) == Some(1)
                    && wanted(&key)
                {
                    bytes += key.len() + OVERHEAD;
                    keys.push(key);
                }
            }
            if bytes > MOST_BYTES {
                return Err(Error::protocol(format!(
                    "{} has more keys than can be listed.",
                    self.title
                )));
            }
            if is_end {
                return Ok(keys);
            }
        }
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        if self.missing()?.is_some() {
            return Ok(vec![None; keys.len()]);
        }
        let longest = Engine::InnoDb.longest_value();
        let mut values = Vec::with_capacity(keys.len());
        for some in keys.chunks(VALUES_AT_ONCE) {
            let select = |key: &String| {
                format!(
                    "SELECT IF(LENGTH(value)>{longest},NULL,value),LENGTH(value),expires,{NOW} \
                     FROM {TABLE} WHERE name={}",
                    Hex(key.as_bytes())
                )
            };
            let statements: Vec<String> = some.iter().map(select).collect();
            let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
            for rows in self.ask(&statements)? {
                let Some(row) = rows.into_iter().next() else {
                    values.push(None);
                    continue;
                };
                let [value, length, expires, now] =
                    <[Option<Vec<u8>>; 4]>::try_from(row).map_err(|_| self.nonsense())?;
                let (Some(length), Some(expires), Some(now)) =
                    (parse(length), parse(expires), parse(now))
                else {
                    return Err(self.nonsense());
                };
                let content = match value {
                    Some(value) => Content::Bytes(value),
                    None => Content::TooLarge(usize::try_from(length).unwrap_or(usize::MAX)),
                };
                let left = Duration::from_micros(expires.saturating_sub(now));
                values
                    .push((!left.is_zero()).then(|| (content, (expires != NEVER).then_some(left))));
            }
        }
        Ok(values)
    }

    fn health(&mut self, lease: Duration) -> Result<Vec<Finding>> {
        let variables = self.named(health::VARIABLES)?;
        let status = self.named(health::STATUS)?;
        // Only some users may see the transactions of others.
        let oldest = self.number(health::OLDEST_TRANSACTION).ok().flatten();
        let rows = self.number(&format!("SELECT COUNT(*) FROM {TABLE}")).ok().flatten();
        let (theirs, ours) = timed(|| self.number(&format!("SELECT {NOW}")))?;
        let theirs = Duration::from_micros(theirs.ok_or_else(|| self.nonsense())?);
        let mut findings = health::all(&health::Facts {
            variables,
            status,
            oldest,
            rows,
            engine: self.settings.engine,
            lease,
        });
        findings.push(Skew::new(theirs, ours, skew::FINE).finding(skew::WITH_REPLICAS));
        Ok(findings)
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        self.wire.quit();
    }
}
