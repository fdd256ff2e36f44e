//! A transaction of another program.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use memlock_tests::mysql::{DATABASE, MariaDb};

/// It has locked the row of an item.
pub(crate) struct Stranger {
    session: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stranger {
    pub(crate) fn locks(server: &MariaDb, key: &str) -> Stranger {
        let mut command = server.session();
        command.arg(DATABASE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = command.spawn().unwrap();
        let (input, output) = (session.stdin.take().unwrap(), session.stdout.take().unwrap());
        let mut stranger = Stranger { session, input, output: BufReader::new(output) };
        stranger.run(&format!(
            "BEGIN; SELECT number>0 FROM memlock_items WHERE name='{key}' FOR UPDATE;"
        ));
        let mut line = String::new();
        stranger.output.read_line(&mut line).unwrap();
        assert_eq!(line, "1\n", "the row is there, and locked");
        stranger
    }

    pub(crate) fn run(&mut self, statements: &str) {
        writeln!(self.input, "{statements}").unwrap();
        self.input.flush().unwrap();
    }

    pub(crate) fn ends(mut self) {
        self.run("COMMIT; SELECT 'done';");
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}
