//! Writing to the terminal: one sentence on standard error, lines and tables on standard output,
//! colours on a terminal.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use crate::text::{json_line, printable, shown};

/// How many sentences wait for a reader of standard error; further ones are dropped.
const MOST_UNREAD: usize = 1024;
/// How long the end waits for that reader.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The way to the thread that writes to standard error, where one does.
static BACKGROUND: OnceLock<SyncSender<Note>> = OnceLock::new();

enum Note {
    Line(String),
    /// All before it is written: to be answered.
    Finish(SyncSender<()>),
}

/// Writes one sentence to standard error. Where that cannot be written there is no reader.
pub(crate) fn complain(sentence: &str) {
    let line = format!("memlock: {}\n", printable(sentence));
    match BACKGROUND.get() {
        Some(background) => _ = background.try_send(Note::Line(line)),
        None => write_line(&line),
    }
}

/// From now on a thread of its own writes to standard error, and only that one waits for its
/// reader: a pipe may be full, or a terminal be stopped by Ctrl-S, and leases are renewed and
/// commands ended all the same. Without such a thread they wait.
pub(crate) fn complain_in_background() {
    let (background, notes) = mpsc::sync_channel(MOST_UNREAD);
    let writes =
        thread::Builder::new().name("memlock-stderr".to_owned()).spawn(move || write_all(&notes));
    if writes.is_ok() {
        let _ = BACKGROUND.set(background);
    }
}

/// Waits a little until everything is written that was said in the background. To be called before
/// the process ends.
pub(crate) fn finish() {
    let Some(background) = BACKGROUND.get() else { return };
    let (done, is_done) = mpsc::sync_channel(1);
    if background.try_send(Note::Finish(done)).is_ok() {
        let _ = is_done.recv_timeout(LAST_WORDS);
    }
}

fn write_all(notes: &Receiver<Note>) {
    for note in notes {
        match note {
            Note::Line(line) => write_line(&line),
            Note::Finish(done) => _ = done.send(()),
        }
    }
}

fn write_line(line: &str) {
    let _ = io::stderr().write_all(line.as_bytes());
}

/// How something looks on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Normal,
    Bold,
    Dim,
    Good,
    Warning,
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Normal => "0",
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Good => "32",
            Style::Warning => "33",
            Style::Bad => "1;31",
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
    pub(crate) fn paint(&self, style: Style, text: impl Display) -> String {
        let text = printable(&text.to_string());
        if self.colours && style != Style::Normal {
            format!("\x1b[{}m{text}\x1b[0m", style.code())
        } else {
            text
        }
    }

    pub(crate) fn line(&mut self, line: impl Display) -> io::Result<()> {
        writeln!(self.to, "{line}")
    }

    /// One line of JSON.
    pub(crate) fn json(&mut self, value: &serde_json::Value) -> io::Result<()> {
        self.line(json_line(value))
    }

    /// Columns as wide as their widest cell; two spaces between them.
    pub(crate) fn table(&mut self, rows: &[Vec<(Style, String)>]) -> io::Result<()> {
        // Escapes are wider than what they stand for.
        let rows: Vec<Vec<(Style, String)>> = rows
            .iter()
            .map(|row| row.iter().map(|(inspect, text)| (*inspect, printable(text))).collect())
            .collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                rows.iter()
                    .filter_map(|row| row.get(column))
                    .map(|(_, text)| width(text))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in &rows {
            let mut line = String::new();
            for (column, (inspect, text)) in row.iter().enumerate() {
                line += &self.paint(*inspect, text);
                if column + 1 < row.len() {
                    let gap =
                        widths.get(column).map_or(0, |wide| wide.saturating_sub(width(text))) + 2;
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
