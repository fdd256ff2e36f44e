//! Another program at a database: an interactive client, in the middle of a transaction.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::launch::{end, spawn};

/// The program. It ends when it is dropped.
#[derive(Debug)]
pub struct Stranger {
    child: Child,
    words: ChildStdin,
    replies: BufReader<ChildStdout>,
    /// Makes it print a line `done`.
    done: &'static str,
}

impl Stranger {
    pub(crate) fn at(mut program: Command, done: &'static str) -> Stranger {
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(program).expect("the program of the database");
        let words = child.stdin.take().expect("a pipe");
        let replies = BufReader::new(child.stdout.take().expect("a pipe"));
        Stranger { child, words, replies, done }
    }

    /// Returns when the statements were carried out.
    pub fn run(&mut self, statements: &str) {
        let _ = self.ask(statements);
    }

    /// The last line that the statements print.
    pub fn ask(&mut self, statements: &str) -> String {
        writeln!(self.words, "{statements}\n{}", self.done).expect("it reads");
        let (mut line, mut last) = (String::new(), String::new());
        loop {
            line.clear();
            let length = self.replies.read_line(&mut line).expect("it prints text");
            assert!(length > 0, "it ended: {statements}");
            match line.trim() {
                "done" => return last,
                other => last = other.to_owned(),
            }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
