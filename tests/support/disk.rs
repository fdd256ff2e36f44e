//! A small disk of one's own, which can be filled: a tmpfs. Only root may mount it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launch::number;

const SIZE: usize = 512 * 1024;

/// The disk, mounted. Dropping it unmounts it.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    process: u32,
}

impl Disk {
    /// Mounts a disk of 512 KiB.
    pub fn mount() -> io::Result<Disk> {
        Disk::with(&format!("size={SIZE}"))
    }

    /// Mounts a disk on which so many files can be created.
    pub fn for_files(count: usize) -> io::Result<Disk> {
        // Its directory has an inode, too.
        Disk::with(&format!("nr_inodes={}", count + 1))
    }

    fn with(options: &str) -> io::Result<Disk> {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("memlock-disk-{process}-{}", number()));
        std::fs::create_dir_all(&path)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(&path)
            .output()
            .and_then(|said| match said.status.success() {
                true => Ok(()),
                false => Err(io::Error::other(String::from_utf8_lossy(&said.stderr).into_owned())),
            });
        if let Err(error) = mounted {
            std::fs::remove_dir(&path)?;
            return Err(error);
        }
        Ok(Disk { path, process })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes until nothing more can be written.
    pub fn fill(&self) {
        let mut size = SIZE;
        let mut whole = Vec::new();
        while size > 0 {
            whole.resize(whole.len() + size, 0);
            // A write that fails has written what there was room for.
            if std::fs::write(self.filler(), &whole).is_err() {
                whole.truncate(whole.len() - size);
                size /= 2;
            }
        }
    }

    /// Makes room again. The file is emptied, not removed: a forked child may have it open.
    pub fn empty(&self) {
        std::fs::write(self.filler(), "").expect("a file that is there is emptied");
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // Lazily: a killed client's files may be open for a moment longer.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        let _ = std::fs::remove_dir(&self.path);
    }
}
