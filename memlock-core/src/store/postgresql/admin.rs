//! What tools ask a PostgreSQL for. They create nothing.

use std::sync::Arc;
use std::time::Duration;

use super::about::{self, About};
use super::login::login;
use super::schema::literal;
use super::settings::Settings;
use super::standbys::{self, Clocks};
use super::wire::{Rows, Wire, nonsense};
use super::{Postgresql, health};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::store::Failure;
use crate::store::admin::skew::{self, Skew, timed};
use crate::store::admin::{Admin, Content, Finding, Value};
use crate::store::remote::{Address, Protocol};

/// The largest value that is read: memlock writes no larger ones.
const LARGEST_VALUE: usize = 1024 * 1024;
/// How many keys are asked for at once, and values.
const KEYS_AT_ONCE: usize = 10_000;
const VALUES_AT_ONCE: usize = 100;

/// A tool's own connection.
pub(super) struct Tool {
    wire: Wire,
    settings: Arc<Settings>,
    title: String,
    about: About,
    is_direct: bool,
}

impl Tool {
    pub(super) fn connect(address: &Address, settings: &Arc<Settings>) -> Result<Tool> {
        let title = address.title(Postgresql::SERVER);
        let open = || {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock);
            let socket = settings.connect(address, &clock)?;
            let mut wire = Wire::new(socket, settings.secret());
            let process = login(&mut wire, address, settings)?;
            let about = About::of(&mut wire, settings)?;
            Ok((wire, process, about))
        };
        let (wire, process, about) = open().map_err(|error| named(&title, error))?;
        let is_direct = about.process == process;
        Ok(Tool { wire, settings: Arc::clone(settings), title, about, is_direct })
    }

    /// What is missing as long as nothing has been stored there.
    pub(super) fn missing(&self) -> Option<String> {
        self.about.is_durable.is_none().then(|| {
            format!(
                "There are no tables in the schema {:?} of {} yet: the first lock creates them.",
                self.settings.schema.name(),
                self.title
            )
        })
    }

    fn ask(&mut self, text: &str) -> Result<Rows> {
        about::ask(&mut self.wire, &self.settings, text).map_err(|error| named(&self.title, error))
    }

    /// The time since 1970 by the server's clock.
    fn time(&mut self) -> Result<Duration> {
        let micros = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = self.ask(micros)?;
        let column = rows.first().and_then(|row| row.first()?.as_ref());
        duration_of(column).ok_or_else(nonsense)
    }

    /// The items' table, if there is one.
    fn items(&self) -> Result<Option<String>> {
        self.about.spare_superusers(&self.settings).map_err(|error| named(&self.title, error))?;
        Ok(self.about.is_durable.map(|_| format!("{}.items", self.settings.schema.quoted())))
    }
}

/// Nothing is changed by a question.
fn named(title: &str, error: Error) -> Error {
    Failure::unsent(error).error.at(title)
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// A duration in microseconds.
fn duration_of(column: Option<&String>) -> Option<Duration> {
    let micros = column?.parse::<u64>().ok()?;
    Some(Duration::from_micros(micros))
}

impl Admin for Tool {
    fn round_trip(&mut self) -> Result<Duration> {
        let sent = SystemClock.now();
        self.ask("SELECT 1")?;
        Ok(SystemClock.now().since(sent))
    }

    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        let Some(items) = self.items()? else { return Ok(Vec::new()) };
        let (mut keys, mut last) = (Vec::new(), "''".to_owned());
        loop {
            let rows = self.ask(&format!(
                "SELECT key, expires > clock_timestamp() FROM {items} WHERE key > {last} ORDER BY key LIMIT \
                 {KEYS_AT_ONCE}"
            ))?;
            let count = rows.len();
            for row in rows {
                let [Some(key), Some(is_there)] =
                    <[Option<String>; 2]>::try_from(row).map_err(|_| nonsense())?
                else {
                    return Err(nonsense());
                };
                last = literal(&key);
                if is_there == "t" && wanted(&key) {
                    keys.push(key);
                }
            }
            if count < KEYS_AT_ONCE {
                return Ok(keys);
            }
        }
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let Some(items) = self.items()? else { return Ok(vec![None; keys.len()]) };
        let mut values = Vec::with_capacity(keys.len());
        for some in keys.chunks(VALUES_AT_ONCE) {
            let wanted: Vec<String> = some
                .iter()
                .enumerate()
                .map(|(place, key)| format!("({place}, {})", literal(key)))
                .collect();
            let mut found = vec![None; some.len()];
            let rows = self.ask(&format!(
                "SELECT place, length(value), CASE WHEN length(value) <= {LARGEST_VALUE} THEN \
                 encode(value, 'hex') END, \
                 CASE WHEN expires < 'infinity' THEN \
                 (extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint END \
                 FROM (VALUES {}) AS wanted (place, key) JOIN {items} USING (key) \
                 WHERE expires > clock_timestamp()",
                wanted.join(", ")
            ))?;
            for row in rows {
                let [Some(place), Some(length), value, left] =
                    <[Option<String>; 4]>::try_from(row).map_err(|_| nonsense())?
                else {
                    return Err(nonsense());
                };
                let place = place.parse::<usize>().ok();
                let slot = place.and_then(|place| found.get_mut(place)).ok_or_else(nonsense)?;
                let content = match value {
                    Some(value) => Content::Bytes(bytes_of(&value).ok_or_else(nonsense)?),
                    None => Content::TooLarge(length.parse().unwrap_or(usize::MAX)),
                };
                let is_finite = left.is_some();
                *slot = Some((
                    content,
                    is_finite.then(|| duration_of(left.as_ref()).unwrap_or_default()),
                ));
            }
            values.append(&mut found);
        }
        Ok(values)
    }

    fn health(&mut self, _lease: Duration) -> Result<Vec<Finding>> {
        let rows = self.ask(&health::questions())?;
        let facts = health::Facts::parse(rows).ok_or_else(nonsense)?;
        let clocks = Clocks::parse(self.ask(standbys::QUESTION)?).ok_or_else(nonsense)?;
        let (theirs, ours) = timed(|| self.time())?;
        let schema = &self.settings.schema;
        let mut findings = health::all(&self.about, &facts, clocks, self.is_direct, schema);
        findings.push(Skew::new(theirs, ours, skew::FINE).finding(skew::WITH_REPLICAS));
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_their_text() {
        assert_eq!(bytes_of("00ff61"), Some(vec![0, 255, 97]));
        for bad in ["6g", "ä"] {
            assert_eq!(bytes_of(bad), None, "{bad}");
        }
    }
}
