//! The schema: its text, and its creation at first use.

use super::wire::{Complaint, Wire};
use crate::hash::fnv1a;
use crate::name::{Key, hex};
use crate::store::Failure;

/// The text, with the places of the schema's name and of the kind of the tables.
const SCHEMA: &str = include_str!("schema.sql");

/// A schema's name, and whether its tables are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema {
    name: String,
    pub(super) is_durable: bool,
}

impl Schema {
    /// `None` for a name with other characters than letters, digits and `_`, or a longer one than
    /// PostgreSQL keeps.
    pub(super) fn new(name: &str, is_durable: bool) -> Option<Schema> {
        let fits = (1..=63).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        fits.then(|| Schema { name: name.to_owned(), is_durable })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The name as it is written in statements.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.name)
    }

    /// The statements that create it, for somebody who may.
    pub(super) fn text(&self) -> String {
        let unlogged = if self.is_durable { "" } else { " UNLOGGED" };
        SCHEMA.replace("{schema}", &self.quoted()).replace(" {unlogged}", unlogged)
    }

    /// The command that prints the text.
    pub(super) fn print_command(&self) -> String {
        let parameters = match (self.name.as_str(), self.is_durable) {
            ("memlock", false) => return "memlock doctor --print-schema postgresql".to_owned(),
            (name, false) => format!("schema={name}"),
            (name, true) => format!("schema={name}&durable=yes"),
        };
        format!("memlock doctor --print-schema 'postgresql://?{parameters}'")
    }

    /// The statements that let a user use it.
    pub(super) fn grants(&self, user: &str) -> String {
        let (schema, user) = (self.quoted(), user.replace('"', "\"\""));
        format!(
            "GRANT USAGE ON SCHEMA {schema} TO \"{user}\"; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO \"{user}\"; \
             GRANT USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO \"{user}\";"
        )
    }

    /// An expression that reads an item's value as text.
    pub(super) fn reading(&self, key: &Key) -> String {
        format!(
            "(SELECT encode(value, 'escape') FROM {}.items \
             WHERE key = convert_from(decode('{}', 'hex'), 'UTF8') AND expires > clock_timestamp())",
            self.quoted(),
            hex(key.as_str().as_bytes()),
        )
    }

    /// The statement that removes an item whose value begins so, in a transaction of somebody else's.
    /// Without quotes, backslashes and percent signs in its literals: it may be run by any client
    /// library, with any settings.
    pub(super) fn removal(&self, key: &Key, start: &[u8]) -> String {
        format!(
            "UPDATE {}.items SET expires = '-infinity' WHERE key = convert_from(decode('{}', 'hex'), 'UTF8') \
             AND substr(value, 1, {}) = decode('{}', 'hex') AND expires > clock_timestamp()",
            self.quoted(),
            hex(key.as_str().as_bytes()),
            start.len(),
            hex(start),
        )
    }

    /// Creates what is missing. Clients that do so at the same time take turns: `IF NOT EXISTS` alone
    /// fails when two transactions create the same thing.
    pub(super) fn create(
        &self,
        wire: &mut Wire,
    ) -> std::result::Result<std::result::Result<(), Complaint>, Failure> {
        let lock = fnv1a(format!("memlock {}", self.name).as_bytes()) as i64;
        let text = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED;\nSELECT pg_advisory_xact_lock({lock});\n{}COMMIT;",
            self.text()
        );
        Ok(wire.query(&text)?.map(|_| ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_schema_everywhere() {
        let text = Schema::new("Locks_2", false).unwrap().text();
        assert!(!text.contains("{schema}") && !text.contains("{unlogged}"));
        assert!(text.contains("CREATE UNLOGGED TABLE IF NOT EXISTS \"Locks_2\".items"));
        let durable = Schema::new("memlock", true).unwrap().text();
        assert!(durable.contains("CREATE TABLE IF NOT EXISTS \"memlock\".items"));
        assert!(!durable.contains("UNLOGGED"));
        for bad in ["", "a b", "a\"b", "ä", &"x".repeat(64)] {
            assert_eq!(Schema::new(bad, false), None);
        }
    }
}
