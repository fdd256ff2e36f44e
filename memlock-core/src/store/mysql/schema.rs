//! The table of the items.
//!
//! | column | contents |
//! | --- | --- |
//! | `name` | the key, compared byte by byte |
//! | `value` | the value |
//! | `number` | the version and the fence: rises with each change of the row, and is at least the time of the change in microseconds |
//! | `expires` | when the item ends, in microseconds since 1970 by UTC; 0 after a release; all ones for an item that never ends |
//!
//! A release leaves the row, so that the next number is greater: a number that is drawn for a new row
//! is drawn before the row is locked. Rows that have been over for an hour are removed by sweeps.

use std::fmt::Write as _;

/// The name of the table.
pub(super) const TABLE: &str = "memlock_items";

/// Where the server keeps the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    InnoDb,
    Memory,
}

impl Engine {
    pub(super) fn from_name(name: &str) -> Option<Engine> {
        [Engine::InnoDb, Engine::Memory]
            .into_iter()
            .find(|engine| engine.name().eq_ignore_ascii_case(name))
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Engine::InnoDb => "InnoDB",
            Engine::Memory => "MEMORY",
        }
    }

    /// A MEMORY table reserves this much for each row.
    pub(super) const fn longest_value(self) -> usize {
        match self {
            Engine::InnoDb => 1024 * 1024,
            Engine::Memory => 4096,
        }
    }

    /// For how long the row of an item that is over must remain, in microseconds. A MEMORY table is
    /// locked as a whole, before a number is drawn.
    pub(super) const fn remains(self) -> u64 {
        match self {
            Engine::InnoDb => 3_600_000_000,
            Engine::Memory => 1_000_000,
        }
    }

    /// The statement that creates the table.
    pub(super) fn definition(self) -> String {
        let mut value = "MEDIUMBLOB".to_owned();
        if self == Engine::Memory {
            value.clear();
            let _ = write!(value, "VARBINARY({})", self.longest_value());
        }
        format!(
            "CREATE TABLE IF NOT EXISTS {TABLE} (name VARBINARY(250) NOT NULL PRIMARY KEY, \
             value {value} NOT NULL, number BIGINT UNSIGNED NOT NULL, \
             expires BIGINT UNSIGNED NOT NULL) ENGINE={}",
            self.name()
        )
    }
}
