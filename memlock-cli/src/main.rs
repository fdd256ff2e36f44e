//! The command `memlock`: see the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    memlock_cli::main()
}
