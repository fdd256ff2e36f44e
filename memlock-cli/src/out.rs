//! Writing to the terminal: one sentence on standard error, lines and tables on standard output, colours where somebody sees them.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Says one sentence on standard error. Where that cannot be written there is nobody to tell.
pub(crate) fn complain(sentence: &str) {
    let _ = writeln!(io::stderr(), "memlock: {sentence}");
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

    /// The text as it is to look.
    pub(crate) fn paint(&self, look: Look, text: impl Display) -> String {
        if self.colours && look != Look::Plain {
            format!("\x1b[{}m{text}\x1b[0m", look.code())
        } else {
            text.to_string()
        }
    }

    pub(crate) fn line(&mut self, line: impl Display) -> io::Result<()> {
        writeln!(self.to, "{line}")
    }

    /// Columns as wide as their widest cell; two spaces between them.
    pub(crate) fn table(&mut self, rows: &[Vec<(Look, String)>]) -> io::Result<()> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                rows.iter().filter_map(|row| row.get(column)).map(|(_, text)| width(text)).max().unwrap_or(0)
            })
            .collect();
        for row in rows {
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

/// A name for people: as it is if it can be shown, and with escapes if not.
pub(crate) fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() && text.chars().all(|c| !c.is_control() && c != '\u{fffd}') => {
            text.to_owned()
        }
        _ => format!("\"{}\"", name.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn names_that_would_spoil_a_terminal_are_escaped() {
        assert_eq!(shown(b"backup db"), "backup db");
        assert_eq!(shown("größe".as_bytes()), "größe");
        assert_eq!(shown(b"a\x1b[31m"), r#""a\x1b[31m""#);
        assert_eq!(shown(b"\xff"), r#""\xff""#);
    }
}
