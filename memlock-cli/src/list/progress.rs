//! How far a long insert got, for a person at a terminal.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use memlock_core::Insertion;

/// What is done sooner needs no bar.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it is drawn.
const PACE: Duration = Duration::from_millis(100);
const WIDTH: usize = 30;

/// A line on standard error that is written over again and again, if that is a terminal.
pub(super) struct Progress {
    is_seen: bool,
    /// The input's length, where it is known.
    length: Option<u64>,
    read: u64,
    keys: usize,
    new: usize,
    began: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    pub(super) fn new(input: &File) -> Progress {
        let about = input.metadata().ok().filter(std::fs::Metadata::is_file);
        Progress {
            // A person who types the keys sees the progress.
            is_seen: io::stderr().is_terminal() && !input.is_terminal(),
            length: about.map(|about| about.len()).filter(|&length| length > 0),
            read: 0,
            keys: 0,
            new: 0,
            began: Instant::now(),
            drawn: None,
        }
    }

    /// Notes what was answered, and how many bytes have been read by now.
    pub(super) fn inserted(&mut self, answers: &[Insertion], read: u64) {
        self.read = read;
        self.keys += answers.len();
        self.new += answers.iter().filter(|answer| matches!(answer, Insertion::First(_))).count();
        let due = match self.drawn {
            None => self.began.elapsed() >= PATIENCE,
            Some(drawn) => drawn.elapsed() >= PACE,
        };
        if self.is_seen && due {
            self.draw();
        }
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        let pace = self.keys as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
        let summary = format!("{} keys, {} new, {pace:.0} keys/s", self.keys, self.new);
        let line = match self.length {
            Some(length) => {
                let share = (self.read as f64 / length as f64).min(1.0);
                let full = (share * WIDTH as f64) as usize;
                format!(
                    "[{}{}] {:3.0} %  {summary}",
                    "#".repeat(full),
                    " ".repeat(WIDTH - full),
                    share * 100.0
                )
            }
            None => summary,
        };
        // Where it cannot be written there is no reader.
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }
}

/// What is said next, perhaps of an error, has a line of its own.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            self.draw();
            let _ = writeln!(io::stderr());
        }
    }
}
