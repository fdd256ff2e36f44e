//! Why a file cannot be used, and what to do.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, ErrorKind as IoKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{ErrorCode, ffi};

use super::room::Room;
use crate::clock::brief;
use crate::error::{Error, ErrorKind};
use crate::store::Failure;

/// Why a batch was not completed. Nothing of it was carried out, unless the failure states
/// otherwise.
pub(super) enum Stop {
    /// Another process has locked the file.
    Busy,
    /// No connection could be opened for the moment: another process has the file locked, or
    /// replaces it, or its path leads nowhere.
    BusyOpening,
    /// The disk has no room for the batch.
    Full(Error),
    Failed(Failure),
}

/// A failed statement, or an unsuitable file.
pub(super) enum Problem {
    Sql(rusqlite::Error),
    Unfit(Error),
    /// Others were put in the places of the files while they were opened.
    Replaced,
}

impl From<rusqlite::Error> for Problem {
    fn from(error: rusqlite::Error) -> Problem {
        Problem::Sql(error)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        Problem::Unfit(error)
    }
}

/// Why a statement failed on an open connection.
pub(super) fn why(problem: Problem, sql: &rusqlite::Connection) -> Stop {
    // SAFETY: the handle is open. The file's name is valid for as long as it is, and ends with a
    // NUL.
    let (errno, path) = unsafe {
        let handle = sql.handle();
        let name = ffi::sqlite3_db_filename(handle, c"main".as_ptr());
        let name = if name.is_null() { c"" } else { CStr::from_ptr(name) };
        (ffi::sqlite3_system_errno(handle), PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    };
    explain(problem, &path, errno)
}

/// Why no connection could be opened. SQLite's error number is not known then.
pub(super) fn why_not_opened(problem: Problem, path: &Path) -> Stop {
    explain(problem, path, 0)
}

fn explain(problem: Problem, path: &Path, errno: i32) -> Stop {
    let error = match problem {
        Problem::Unfit(error) => return failed(error),
        Problem::Replaced => return Stop::Busy,
        Problem::Sql(error) => error,
    };
    let said = match &error {
        // The statement itself tells nothing to a user.
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        rusqlite::Error::QueryReturnedNoRows => "a row is missing".to_owned(),
        _ => error.to_string(),
    };
    let extended = error.sqlite_extended_error_code().unwrap_or_default();
    let code = error.sqlite_error_code();
    let is_of_system = matches!(code, Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen));
    failed(match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => return Stop::Busy,
        Some(ErrorCode::DiskFull) => return Stop::Full(no_room(path, libc::ENOSPC)),
        _ if is_of_system && is_no_room(errno) => return Stop::Full(no_room(path, errno)),
        _ if is_of_system && errno == libc::EROFS => read_only(),
        _ if is_of_system && is_no_descriptor(errno) => no_descriptor(errno),
        Some(ErrorCode::NotADatabase) => Error::protocol(
            "It is damaged, or is no SQLite database: name another file, which need not exist yet; \
             or, if its locks are not needed, stop what uses it, and remove it and its -wal and \
             -shm files.",
        ),
        Some(ErrorCode::DatabaseCorrupt) => damaged(&said),
        _ if extended == ffi::SQLITE_IOERR_SHORT_READ => damaged(&said),
        // Its tables or the types in them are others than memlock wrote.
        None
        | Some(ErrorCode::Unknown | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) => {
            damaged(&said)
        }
        Some(ErrorCode::TooBig) => Error::protocol(
            "It contains a larger item than memlock writes: remove that item, for example with \
             sqlite3: DELETE FROM items WHERE length(value) > 1048576.",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            match denied(path) {
                Some(error) => error,
                // The system's error number was not kept.
                None if errno == 0 && has_no_descriptor() => no_descriptor(libc::EMFILE),
                None if has_no_inode(path) => return Stop::Full(no_room(path, libc::ENOSPC)),
                None => unreachable(format!("It cannot be opened ({}).", detail(&said, errno))),
            }
        }
        _ => unreachable(format!("SQLite failed ({}).", detail(&said, errno))),
    })
}

fn failed(error: Error) -> Stop {
    Stop::Failed(Failure { error, sent: false })
}

/// Why the file itself cannot be opened.
pub(super) fn not_opened(path: &Path, error: &io::Error) -> Error {
    let directory = directory_of(path).display();
    let errno = error.raw_os_error().unwrap_or_default();
    match error.kind() {
        _ if is_no_room(errno) => no_room(path, errno),
        _ if is_no_descriptor(errno) => no_descriptor(errno),
        IoKind::NotFound if path.is_symlink() => Error::protocol(
            "It is a symbolic link to a file that is not there: create that file, or remove the \
             link.",
        ),
        IoKind::NotFound => Error::protocol(format!(
            "The directory {directory} is not there: create it, or name another file."
        )),
        IoKind::PermissionDenied => denied(path).unwrap_or_else(|| {
            Error::protocol(format!(
                "This user may not write it ({error}): change its owner or its mode, or name \
                 another file. In a directory that all users can write, such as /tmp, \
                 fs.protected_regular denies files of others."
            ))
        }),
        IoKind::ReadOnlyFilesystem => read_only(),
        IoKind::IsADirectory => {
            Error::protocol("It is a directory: name a file, which need not exist yet.")
        }
        _ => unreachable(format!("It cannot be opened: {error}.")),
    }
}

/// What to do where `/proc` does not tell what has to be known of this process and its host.
pub(super) const MOUNT_PROC: &str =
    "mount /proc for this process, in its PID namespace and its chroot (mount -t proc proc /proc)";

/// The error of a file of `/proc` that cannot be read.
pub(super) fn not_read(file: &str, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(errno) if is_no_descriptor(errno) => no_descriptor(errno),
        _ => Error::config(format!(
            "{file} cannot be read ({error}), without which the clock of this process and the boots \
             of its host are not known: {MOUNT_PROC}, with all its files."
        )),
    }
}

/// The error of a file that was locked, or led to nowhere, for longer than a call may wait.
pub(super) fn kept_locked(path: &Path, io_timeout: Duration) -> Error {
    if let Err(error) = std::fs::metadata(path) {
        return unreachable(format!(
            "Its path leads to no file any more ({error}): restore the directory or the link on \
             it, or connect to another file."
        ));
    }
    let time = brief(io_timeout);
    let do_it = "look whether it is stopped (kill -CONT continues it) or its disk is slow; \
                 io_timeout in the URL says how long to wait";
    unreachable(match locker(path) {
        Some(pid) if pid == std::process::id() => format!(
            "Another connection of this process has kept it locked for {time} (io_timeout): use \
             one copy of memlock in a process, and no other SQLite on this file."
        ),
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let name = name.trim();
            let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
            format!("Process {pid}{name} has kept it locked for {time} (io_timeout): {do_it}.")
        }
        None => {
            format!("Another process has kept it locked for {time} (io_timeout): {do_it}.")
        }
    })
}

pub(super) fn unreachable(text: String) -> Error {
    Error::new(ErrorKind::Unreachable, text)
}

fn damaged(said: &str) -> Error {
    Error::protocol(format!(
        "It is damaged ({said}): stop what uses it, remove it and its -wal and -shm files, and \
         start again."
    ))
}

fn detail(said: &str, errno: i32) -> String {
    if errno == 0 {
        return said.to_owned();
    }
    format!("{said}: {}", io::Error::from_raw_os_error(errno))
}

fn is_no_room(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
}

fn has_no_inode(path: &Path) -> bool {
    Room::at(path).is_some_and(|room| room.has_no_inode)
}

fn no_room(path: &Path, errno: i32) -> Error {
    unreachable(
        match errno {
            libc::EDQUOT => {
                "The disk quota is used up: nothing was changed. Make room, or raise the quota."
            }
            libc::EFBIG => {
                "The limit of this process on the size of files (ulimit -f) is reached: nothing \
                 was changed. Raise it."
            }
            _ if has_no_inode(path) => {
                "The file system has no inode left for another file, whatever room is left (df -i): nothing \
                 was changed. Remove files there, or name a file on another file system."
            }
            _ => {
                "The disk is full: nothing was changed. Make room, or name a file on another disk."
            }
        }
        .to_owned(),
    )
}

fn read_only() -> Error {
    Error::protocol(
        "It is on a file system that is mounted read-only: mount it for writing (mount -o remount,rw), or \
         name a file that can be written.",
    )
}

fn is_no_descriptor(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE)
}

/// Whether this process can open no more files.
fn has_no_descriptor() -> bool {
    File::open("/dev/null").is_err_and(|error| error.raw_os_error().is_some_and(is_no_descriptor))
}

fn no_descriptor(errno: i32) -> Error {
    unreachable(
        match errno {
            libc::ENFILE => {
                "Too many files are open on this host: close some, or raise fs.file-max."
            }
            _ => {
                "This process has too many open files: close some, or raise its limit (ulimit -n)."
            }
        }
        .to_owned(),
    )
}

/// What this user may not use, of the file, its directory, and the two files that SQLite creates
/// beside it.
fn denied(path: &Path) -> Option<Error> {
    let directory = directory_of(path);
    if Room::at(path).is_some_and(|room| room.is_read_only) {
        return Some(read_only());
    }
    if path.exists() && !can(path, libc::R_OK | libc::W_OK) {
        return Some(Error::protocol(format!(
            "This user may not write it ({}): change its owner or its mode, or name another file.",
            owner_of(path)
        )));
    }
    if !can(directory, libc::W_OK | libc::X_OK) {
        return Some(Error::protocol(format!(
            "This user may not create files in the directory {} ({}), where SQLite creates two \
             beside it: change the directory's owner or its mode, or name another file.",
            directory.display(),
            owner_of(directory)
        )));
    }
    let beside = ["-wal", "-shm"].map(|end| beside(path, end));
    let other =
        beside.iter().find(|other| other.exists() && !can(other, libc::R_OK | libc::W_OK))?;
    Some(Error::protocol(format!(
        "This user may not write {} ({}), which another user's process created: give the directory \
         {} the group of the file and the setgid bit (chmod g+s), stop what uses the file, and \
         remove {0} if it is left.",
        other.display(),
        owner_of(other),
        directory.display()
    )))
}

fn owner_of(path: &Path) -> String {
    std::fs::metadata(path).map_or_else(
        |error| error.to_string(),
        |found| {
            let mode = found.mode() & 0o7777;
            format!("mode {mode:03o}, user {}, group {}", found.uid(), found.gid())
        },
    )
}

/// Whether this process, by its effective ids, has this access.
pub(super) fn can(path: &Path, access: i32) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path ends with a NUL.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), access, libc::AT_EACCESS) == 0 }
}

/// The directory of an absolute path.
pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// The path of a file that SQLite creates beside this one.
fn beside(path: &Path, end: &str) -> PathBuf {
    // SQLite follows links first.
    let mut name = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).into_os_string();
    name.push(end);
    name.into()
}

/// The process that has the file locked for writing, if it can be found. No file of SQLite is
/// opened: closing it would drop the locks that this process has on it.
fn locker(path: &Path) -> Option<u32> {
    const LISTS: usize = 3;
    // The kernel lists the locks in parts, between which they change: one may be missing.
    (0..LISTS).find_map(|_| locker_in(&std::fs::read_to_string("/proc/locks").ok()?, path))
}

fn locker_in(locks: &str, path: &Path) -> Option<u32> {
    /// The byte of the `-shm` file that writers lock.
    const WRITER: u64 = 120;
    let shared = std::fs::metadata(beside(path, "-shm"))
        .ok()
        .and_then(|shared| holder_in(locks, &shared, WRITER..=WRITER));
    // Without the log's index, for example while a connection is opened first or closed last.
    shared.or_else(|| holder_in(locks, &std::fs::metadata(path).ok()?, 0..=u64::MAX))
}

/// The process with a write lock on this range of the file.
fn holder_in(
    locks: &str,
    file: &std::fs::Metadata,
    range: std::ops::RangeInclusive<u64>,
) -> Option<u32> {
    let device = (libc::major(file.dev()), libc::minor(file.dev()));
    let id = format!("{:02x}:{:02x}:{}", device.0, device.1, file.ino());
    locks.lines().find_map(|line| {
        // 1: POSIX  ADVISORY  WRITE 812 fd:01:1234 120 120
        let mut words = line.split_whitespace().skip(1);
        let (kind, _, mode) = (words.next()?, words.next()?, words.next()?);
        let (pid, of) = (words.next()?, words.next()?);
        let first: u64 = words.next()?.parse().ok()?;
        let last = words.next()?.parse().unwrap_or(u64::MAX);
        let is_there = first <= *range.end() && last >= *range.start();
        (kind == "POSIX" && mode == "WRITE" && of == id && is_there).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests;
