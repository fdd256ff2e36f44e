//! The tables of a file, and whether those that are found are the same.
//!
//! SQLite keeps the text of what created a table or an index. The texts are compared as a whole: all
//! that can be said of a table, such as what happens on a conflict, is in its text, and some of it in
//! nothing else that SQLite tells.

/// The tables, by their names.
pub(super) const TABLES: [(&str, &str); 3] = [
    (
        "items",
        "CREATE TABLE items (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    number INTEGER NOT NULL,
    -- Milliseconds since the host was started; NULL: for ever.
    expires INTEGER,
    -- The same in Unix milliseconds, for an item that lives on after a reboot; otherwise NULL.
    wall INTEGER
) WITHOUT ROWID",
    ),
    (
        "state",
        "CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    -- 16 random bytes that name the file.
    name BLOB NOT NULL,
    -- The kernel's boot id when a process that could read it opened the file last.
    boot TEXT,
    -- Numbers of this boot begin above the base, and are below the horizon.
    base INTEGER NOT NULL,
    horizon INTEGER NOT NULL,
    -- The last key that a sweep examined.
    swept TEXT NOT NULL DEFAULT ''
)",
    ),
    // The boot ids of containers that have their own, since the last reboot that was noticed.
    ("containers", "CREATE TABLE containers (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)"),
];

/// The words with which constraints begin: all others behind the name of a column are of its type.
const OF_CONSTRAINTS: [&str; 12] = [
    "CONSTRAINT",
    "PRIMARY",
    "NOT",
    "NULL",
    "UNIQUE",
    "CHECK",
    "DEFAULT",
    "COLLATE",
    "REFERENCES",
    "GENERATED",
    "AS",
    "FOREIGN",
];
const ORDERS: [&str; 2] = ["ASC", "DESC"];

/// Whether a table with this text works as memlock's table of that name. It may have more columns at
/// its end.
pub(super) fn is_our_table(name: &str, text: &str) -> bool {
    let Some((_, ours)) = TABLES.iter().find(|(known, _)| *known == name) else { return false };
    let (ours, found) = (tokens(ours), tokens(text));
    let Some(end) = ours.iter().rposition(|&token| token == ")") else { return false };
    let (columns, end) = ours.split_at(end);
    let more = found.strip_prefix(columns).and_then(|rest| rest.strip_suffix(end));
    more.is_some_and(|more| match more {
        [] => true,
        [",", more @ ..] => more.split(|&token| token == ",").all(is_plain_column),
        _ => false,
    })
}

/// Whether an index with this text can refuse no row: it is of whole columns, and not unique.
pub(super) fn is_plain_index(text: &str) -> bool {
    match tokens(text).as_slice() {
        [create, index, name, on, table, "(", columns @ .., ")"] => {
            is_one_of(create, &["CREATE"])
                && is_one_of(index, &["INDEX"])
                && is_one_of(on, &["ON"])
                && is_name(name)
                && is_name(table)
                && columns.split(|&token| token == ",").all(is_plain_part)
        }
        _ => false,
    }
}

/// Whether this is a column of which nothing is said but its type, or a part of a type with a comma in
/// it. NULL is its default in any case.
fn is_plain_column(column: &[&str]) -> bool {
    let column = match column {
        [name @ .., default, null]
            if is_one_of(default, &["DEFAULT"]) && is_one_of(null, &["NULL"]) =>
        {
            name
        }
        column => column,
    };
    !column.is_empty()
        && column.iter().all(|word| {
            matches!(*word, "(" | ")") || is_name(word) && !is_one_of(word, &OF_CONSTRAINTS)
        })
}

/// Whether this is a column of an index, or a column and its order.
fn is_plain_part(column: &[&str]) -> bool {
    match column {
        [name] => is_name(name),
        [name, order] => is_name(name) && is_one_of(order, &ORDERS),
        _ => false,
    }
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|known| known.eq_ignore_ascii_case(word))
}

/// Whether it is a name without quotation marks.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The words and marks of a text, without the comments at the ends of lines, and names without their
/// quotation marks. What looks like one and is
/// none to SQLite is behind a quotation mark or a `/*`, which remains among the tokens.
fn tokens(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code));
    let words = lines.flat_map(str::split_ascii_whitespace);
    let marks = |c: char| matches!(c, '(' | ')' | ',');
    words
        .flat_map(|word| word.split_inclusive(marks))
        .flat_map(|part| match part.strip_suffix(marks) {
            Some(word) => [word, &part[word.len()..]],
            None => [part, ""],
        })
        .filter(|token| !token.is_empty())
        .map(|token| {
            let name = [('"', '"'), ('`', '`'), ('[', ']')].iter().find_map(|&(begin, end)| {
                token.strip_prefix(begin)?.strip_suffix(end).filter(|name| is_name(name))
            });
            name.unwrap_or(token)
        })
        .collect()
}
