//! Programs whose wall clock is wrong.
//!
//! libfaketime does not get along with jemalloc, which Redis is linked with. It leaves the clock
//! right in processes that a signal handler forks, as PostgreSQL forks its own, and files in
//! /dev/shm when a server is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::launch::{at_exit, give, run};

/// Sets the wall clock of a program ahead by so many seconds, or back. Its other clocks are right.
pub fn shift(command: &mut Command, seconds: i64) {
    command.env("LD_PRELOAD", library()).env("MEMLOCK_TEST_AHEAD", seconds.to_string());
}

/// The library that does so.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let name = format!("memlock-wrong-clock-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a directory of ours");
        // Servers run as another user.
        give(&folder);
        let library = folder.join("wrong_clock.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&library);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("support/wrong_clock.c"));
        run(cc);
        at_exit(move || drop(fs::remove_dir_all(folder)));
        library
    })
}
