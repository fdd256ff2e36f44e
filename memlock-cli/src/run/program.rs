//! Why a program is not found although its file is there.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::text::shown;

/// As much of the first line of a script as the kernel reads.
const FIRST_LINE: u64 = 256;

/// The file that is executed.
pub(super) fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// What is missing: only what executes the file can be.
pub(super) fn needs(file: &Path) -> String {
    let mut line = Vec::new();
    let read = File::open(file).and_then(|file| file.take(FIRST_LINE).read_to_end(&mut line));
    let interpreter = line.strip_prefix(b"#!").filter(|_| read.is_ok()).map(|line| {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = line.trim_ascii_start();
        line.split(|&byte| byte == b' ' || byte == b'\t').next().unwrap_or_default()
    });
    match interpreter {
        Some(interpreter) => format!(
            "the interpreter that its first line names, {}, was not found",
            shown(interpreter)
        ),
        None => "the loader or the interpreter that it needs was not found".to_owned(),
    }
}
