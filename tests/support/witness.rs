//! Holding a lock by other means as well: two processes that have it at once meet there.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};

/// A file that the kernel locks for one process, until it ends.
#[derive(Debug)]
pub struct Witness(pub File);

impl Witness {
    /// `None` if another process has it.
    pub fn take(path: &Path) -> Option<Witness> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.expect("the file can be made");
        // SAFETY: the descriptor is open.
        let taken = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        (taken == 0).then_some(Witness(file))
    }

    /// Notes until when its process holds the lock.
    pub fn note_end(path: &Path, end: Moment) {
        let nanos = end.since_boot().as_nanos().to_string();
        fs::write(path.with_extension("end"), nanos).expect("the end can be noted");
    }

    /// Whether its process holds the lock no more: on a busy machine it may not have run since.
    pub fn is_over(path: &Path) -> bool {
        let noted = fs::read_to_string(path.with_extension("end"));
        // It may be about to be noted.
        let end = noted.ok().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
        SystemClock.now() >= Moment::from_boot(Duration::from_nanos(end))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the file open, too.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}
