//! Through the Python module: in `driver.py`, or by its coroutines in `coroutines.py`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Driver;

/// Starts one with the interpreter of `$PYTHON`, or else that of `make python`.
pub(super) fn start(program: &str) -> Driver {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_the_tests = || tests.with_file_name("target/venv/bin/python");
    let python = std::env::var_os("PYTHON").map_or_else(of_the_tests, PathBuf::from);
    let missing = format!(
        "{} has no module memlock that works. Build it with `make python`.",
        python.display()
    );
    let mut command = Command::new(python);
    command.arg(tests.join("doors").join(program));
    Driver::start(command, &missing)
}
