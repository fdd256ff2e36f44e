//! Writing to the terminal: one sentence on standard error, lines and tables on standard output, colours where somebody sees them.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use crate::text::{json_line, printable, shown};

/// Says one sentence on standard error. Where that cannot be written there is nobody to tell.
pub(crate) fn complain(sentence: &str) {
    let _ = writeln!(io::stderr(), "memlock: {}", printable(sentence));
}

/// How something looks on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    Bold,
    Dim,
    Good,
    Warning,
    Bad,
}

impl Look {
    fn code(self) -> &'static str {
        match self {
            Look::Plain => "0",
            Look::Bold => "1",
            Look::Dim => "2",
            Look::Good => "32",
            Look::Warning => "33",
            Look::Bad => "1;31",
        }
    }
}

/// Standard output, with colours if a person sees it and has not said otherwise.
pub(crate) struct Out {
    to: io::StdoutLock<'static>,
    colours: bool,
}

impl Out {
    pub(crate) fn new() -> Out {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|value| value != "dumb");
        Out { to: io::stdout().lock(), colours: wanted && io::stdout().is_terminal() }
    }

    /// A key that may be read by another program: raw, unless a terminal shows it.
    pub(crate) fn key(key: &[u8]) -> Cow<'_, [u8]> {
        if io::stdout().is_terminal() { shown(key).into_bytes().into() } else { key.into() }
    }

    /// The text as it is to look, with escapes for what is not printable.
    pub(crate) fn paint(&self, look: Look, text: impl Display) -> String {
        let text = printable(&text.to_string());
        if self.colours && look != Look::Plain { format!("\x1b[{}m{text}\x1b[0m", look.code()) } else { text }
    }

    pub(crate) fn line(&mut self, line: impl Display) -> io::Result<()> {
        writeln!(self.to, "{line}")
    }

    /// One line of JSON.
    pub(crate) fn json(&mut self, value: &serde_json::Value) -> io::Result<()> {
        self.line(json_line(value))
    }

    /// Columns as wide as their widest cell; two spaces between them.
    pub(crate) fn table(&mut self, rows: &[Vec<(Look, String)>]) -> io::Result<()> {
        // Escapes are wider than what they stand for.
        let rows: Vec<Vec<(Look, String)>> = rows
            .iter()
            .map(|row| row.iter().map(|(look, text)| (*look, printable(text))).collect())
            .collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                rows.iter().filter_map(|row| row.get(column)).map(|(_, text)| width(text)).max().unwrap_or(0)
            })
            .collect();
        for row in &rows {
            let mut line = String::new();
            for (column, (look, text)) in row.iter().enumerate() {
                line += &self.paint(*look, text);
                if column + 1 < row.len() {
                    let gap = widths.get(column).map_or(0, |wide| wide.saturating_sub(width(text))) + 2;
                    line += &" ".repeat(gap);
                }
            }
            self.line(line.trim_end())?;
        }
        Ok(())
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}
