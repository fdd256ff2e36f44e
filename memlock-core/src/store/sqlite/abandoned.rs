//! Connections whose descriptors the program has closed.
//!
//! A daemon closes all descriptors that it did not open itself, and opens files of its own with
//! their numbers: SQLite would write its pages into those, and close them with the connection. Such
//! a connection is therefore abandoned, which means that it is neither used nor closed.
//!
//! SQLite knows the files that are open by their inodes, with the locks that the process has on
//! each: those locks ended when the descriptors were closed. A new connection must not share them.
//! From then on SQLite sees another inode number for the file, as in a child made by `fork`.

use std::os::fd::RawFd;
use std::sync::Mutex;

use once_cell::race::OnceBox;

use super::file::FileId;

/// The files that this process has open, with the numbers of their descriptors; `None` where `/proc`
/// does not tell.
pub(super) struct OpenFiles(Option<Vec<(RawFd, FileId)>>);

impl OpenFiles {
    pub(super) fn now() -> OpenFiles {
        // Of a process whose first thread has ended, `/proc/self` shows none.
        let descriptors = std::fs::read_dir("/proc/thread-self/fd").ok();
        let open = |entry: std::fs::DirEntry| {
            let descriptor = entry.file_name().to_str()?.parse().ok()?;
            Some((descriptor, FileId::of_descriptor(descriptor)?))
        };
        OpenFiles(descriptors.map(|all| all.flatten().filter_map(open).collect()))
    }

    /// Whether all of these are among them. SQLite opened them by their paths, where there may be
    /// others by now, so that it may have others open. True where `/proc` does not tell.
    pub(super) fn contain(&self, files: &[Option<FileId>]) -> bool {
        let Some(open) = &self.0 else { return true };
        let is_open = |file: FileId| open.iter().any(|&(_, there)| there == file);
        files.iter().all(|file| file.is_some_and(is_open))
    }

    /// The descriptors of these files that were not open before.
    pub(super) fn opened_since(self, before: &OpenFiles, files: &[Option<FileId>]) -> Descriptors {
        let mut open = self.0.unwrap_or_default();
        open.retain(|new| {
            files.contains(&Some(new.1)) && !before.0.iter().flatten().any(|old| old == new)
        });
        Descriptors(open)
    }
}

/// The descriptors of a connection; none where `/proc` does not tell.
#[derive(Debug)]
pub(super) struct Descriptors(Vec<(RawFd, FileId)>);

impl Descriptors {
    /// Whether the program has closed none of them.
    pub(super) fn are_ours(&self) -> bool {
        let is_ours = |&(number, file)| FileId::of_descriptor(number) == Some(file);
        self.0.iter().all(is_ours)
    }
}

/// An abandoned connection, in a list that only grows, so that it is read without a lock.
struct Abandoned {
    file: Option<FileId>,
    _connection: Mutex<rusqlite::Connection>,
    next: OnceBox<Abandoned>,
}

static FIRST: OnceBox<Abandoned> = OnceBox::new();

/// Abandons a connection to this file.
pub(super) fn abandon(connection: rusqlite::Connection, file: Option<FileId>) {
    let _connection = Mutex::new(connection);
    let mut abandoned = Some(Box::new(Abandoned { file, _connection, next: OnceBox::new() }));
    let mut place = &FIRST;
    while let Some(new) = abandoned.take() {
        abandoned = place.set(new).err();
        if let Some(there) = place.get() {
            place = &there.next;
        }
    }
}

/// How many connections to the file were abandoned.
pub(super) fn count(file: FileId) -> u64 {
    let mut abandoned = FIRST.get();
    let mut count = 0;
    while let Some(Abandoned { file: of, next, .. }) = abandoned {
        count += u64::from(*of == Some(file));
        abandoned = next.get();
    }
    count
}
