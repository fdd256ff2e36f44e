//! The schema: its text, its creation at first use, and the upgrade of its functions.

use super::request;
use super::wire::{Complaint, Wire, is_true};
use crate::hash::fnv1a;
use crate::name::{Key, hex};
use crate::store::Failure;

/// The text, with the places of the schema's name and of the kind of the tables.
const TABLES: &str = include_str!("tables.sql");
const FUNCTIONS: &str = include_str!("functions.sql");

/// The revision of the functions' bodies, which is in the first line of each. A later one has the
/// same interface.
pub(super) const REVISION: i32 = 3;

/// For how many milliseconds a function may be locked by others that is to be replaced.
const UPGRADE_PATIENCE: u32 = 100;

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
        let tables = TABLES.replace(" {unlogged}", unlogged);
        format!("{tables}\n{FUNCTIONS}").replace("{schema}", &self.quoted())
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

    /// How functions of an earlier revision are replaced.
    pub(super) fn how_to_upgrade(&self) -> String {
        format!(
            "Have a superuser run what `{}` prints, or an owner of the functions who may create objects in the \
             schema.",
            self.print_command()
        )
    }

    /// The functions as rows of names and types of parameters, in a list of SQL.
    pub(super) fn functions(&self) -> String {
        let types = |types: &[u32]| types.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let apply = types(&request::apply("").1);
        format!("('timeline_1', ''), ('live_1', ''), ('apply_1', '{apply}')")
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
             WHERE key = {} AND expires > clock_timestamp())",
            self.quoted(),
            literal(key.as_str()),
        )
    }

    /// The statement that removes an item whose value begins so, in a transaction of somebody else's.
    /// Without quotes, backslashes and percent signs in its literals, and with the schema of each
    /// function and operator: it may be run by any client library, with any settings.
    pub(super) fn removal(&self, key: &Key, start: &[u8]) -> String {
        format!(
            "UPDATE {}.items SET expires = '-infinity' WHERE key OPERATOR(pg_catalog.=) {} \
             AND pg_catalog.substr(value, 1, {}) OPERATOR(pg_catalog.=) pg_catalog.decode('{}', 'hex') \
             AND expires OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()",
            self.quoted(),
            literal(key.as_str()),
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
        let text = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\n\
             SET LOCAL lock_timeout = 0;\n\
             SELECT pg_advisory_xact_lock({});\n{}",
            self.turn(),
            self.text()
        );
        Ok(wire.query(&text)?.map(|_| ()))
    }

    /// Replaces the functions by those of this revision. Returns whether it did: another session may do
    /// so, and has the advisory lock; or keeps a function locked.
    pub(super) fn upgrade(
        &self,
        wire: &mut Wire,
    ) -> std::result::Result<std::result::Result<bool, Complaint>, Failure> {
        let turn = self.turn();
        let functions = FUNCTIONS.replace("{schema}", &self.quoted());
        let text = format!(
            "SET LOCAL lock_timeout = {UPGRADE_PATIENCE};\n\
             SELECT pg_try_advisory_xact_lock({turn});\n\
             DO $do$ BEGIN IF pg_try_advisory_xact_lock({turn}) THEN\n\
             EXECUTE $upgrade${functions}$upgrade$; END IF; END $do$"
        );
        Ok(wire.query(&text)?.map(|rows| is_true(&rows)))
    }

    /// The advisory lock of clients that create or replace something.
    fn turn(&self) -> i64 {
        fnv1a(format!("memlock {}", self.name).as_bytes()) as i64
    }
}

/// A key as a literal that means the same with all settings.
pub(super) fn literal(key: &str) -> String {
    format!("pg_catalog.convert_from(pg_catalog.decode('{}', 'hex'), 'UTF8')", hex(key.as_bytes()))
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
        let revision = format!("AS $body$ -- Revision {REVISION}\n");
        assert_eq!(text.matches(&revision).count(), text.matches("$body$").count() / 2);
        for bad in ["", "a b", "a\"b", "ä", &"x".repeat(64)] {
            assert_eq!(Schema::new(bad, false), None);
        }
    }
}
