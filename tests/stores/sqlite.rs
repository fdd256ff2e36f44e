//! A file of the SQLite store, in a directory of each test's own.

use std::path::PathBuf;
use std::time::Duration;

use super::{Instance, Store};

/// `sqlite:///path`.
pub(crate) const SQLITE: Store = Store {
    place: |unique| {
        let path = std::env::temp_dir().join(format!("memlock-{}-{unique}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let url = format!("sqlite://{}/locks.db?io_timeout=20s", path.display());
        Instance::of_its_own(url, Directory(path))
    },
    shared_between_processes: true,
    shortest_lease: Duration::from_secs(1),
    // Semaphores note ends in whole seconds.
    slack: Duration::from_millis(2100),
    shown: "in the file /",
    server: None,
    keeps_when_killed: false,
};

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
