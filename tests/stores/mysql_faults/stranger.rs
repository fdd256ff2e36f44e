//! A transaction of another program.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::Place;

/// It has locked the row of an item.
pub(crate) struct Stranger {
    session: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stranger {
    pub(crate) fn locks(place: &Place<'_>, key: &str) -> Stranger {
        let mut stranger = Stranger::at(place);
        stranger.run(&format!(
            "BEGIN; SELECT number>0 FROM memlock_items WHERE name='{key}' FOR UPDATE;"
        ));
        assert_eq!(stranger.line(), "1\n", "the row is there, and locked");
        stranger
    }

    pub(crate) fn at(place: &Place<'_>) -> Stranger {
        let mut command = place.server.session();
        command.arg(&place.database).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = command.spawn().unwrap();
        let (input, output) = (session.stdin.take().unwrap(), session.stdout.take().unwrap());
        Stranger { session, input, output: BufReader::new(output) }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn run(&mut self, statements: &str) {
        writeln!(self.input, "{statements}").unwrap();
        self.input.flush().unwrap();
    }

    pub(crate) fn ends(mut self) {
        self.run("COMMIT; SELECT 'done';");
        assert_eq!(self.line(), "done\n");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}
