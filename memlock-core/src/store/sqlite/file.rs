//! Whether a file is suitable for locks, and its creation.

use std::ffi::{CStr, CString, c_int};
use std::fs::{Metadata, OpenOptions};
use std::io::ErrorKind as IoKind;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::errors::{directory_of, not_opened, unreachable};
use crate::descriptor::{Inode, occupy_standard_streams};
use crate::error::{Error, Result};

/// The location of the locks.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) path: PathBuf,
    /// Whether a network file system is treated as a local one.
    pub(super) trusts_networks: bool,
    /// Whether the client has a connection of its own, as those of another process have.
    #[cfg(test)]
    pub(super) is_of_another_process: bool,
}

/// Identifies a file for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId(Inode);

impl FileId {
    /// The id of the file at this path, if there is one.
    pub(super) fn of(path: &Path) -> Option<FileId> {
        std::fs::metadata(path).ok().as_ref().map(FileId::from)
    }

    /// The id of the file that the descriptor refers to, if it is open.
    pub(super) fn of_descriptor(descriptor: RawFd) -> Option<FileId> {
        Inode::of(descriptor).ok().map(FileId)
    }
}

impl From<&libc::stat> for FileId {
    fn from(found: &libc::stat) -> FileId {
        FileId(Inode::from(found))
    }
}

impl From<&Metadata> for FileId {
    fn from(found: &Metadata) -> FileId {
        FileId(Inode { device: found.dev(), number: found.ino() })
    }
}

/// The paths of a database, its log and its index of the log, through all symbolic links.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) database: PathBuf,
    log: PathBuf,
    index: PathBuf,
}

/// Which files are at those paths, and the size of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) ids: [Option<FileId>; 3],
    pub(super) log_size: u64,
}

impl Files {
    /// Those of the database at this path, which has to exist.
    pub(super) fn of(path: &Path) -> Result<Files> {
        let database = path.canonicalize().map_err(|error| {
            unreachable(format!("It was there, and is not any more ({error})."))
        })?;
        let beside = |end: &str| {
            let mut path = database.clone().into_os_string();
            path.push(end);
            PathBuf::from(path)
        };
        Ok(Files { log: beside("-wal"), index: beside("-shm"), database })
    }

    pub(super) fn find(&self) -> Found {
        let log = std::fs::metadata(&self.log).ok();
        Found {
            ids: [
                FileId::of(&self.database),
                log.as_ref().map(FileId::from),
                FileId::of(&self.index),
            ],
            log_size: log.map_or(0, |log| log.len()),
        }
    }
}

/// File systems that other hosts may write to at the same time, by their `statfs` numbers.
const NETWORKS: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x00c3_6400, "Ceph"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0xaad7_aaea, "PanFS"),
    (0x2003_0528, "OrangeFS"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "VMware shared folders"),
    (0x7c7c_6673, "Parallels shared folders"),
];

impl Location {
    /// Creates an empty file that only its owner can use, unless there is one, and checks its
    /// location. Which file it is.
    pub(super) fn prepare(&self) -> Result<FileId> {
        occupy_standard_streams();
        if !self.path.exists() {
            // Nothing is created on a file system that is refused.
            self.check_file_system(directory_of(&self.path))?;
        }
        // An existing file is not opened here: closing it would drop all locks that SQLite has on
        // it in this process.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_CREAT | libc::O_EXCL).mode(0o600);
        match options.open(&self.path) {
            Ok(new) => drop(new),
            Err(error) if error.kind() == IoKind::AlreadyExists => {}
            Err(error) => return Err(not_opened(&self.path, &error)),
        }
        self.check()
    }

    /// What `open` returns; `None` if it fails, and the path leads nowhere. If it leads to a file
    /// again since the failure, `open` is called once more.
    pub(super) fn unless_nowhere<T>(&self, open: impl Fn() -> Result<T>) -> Result<Option<T>> {
        match open() {
            Ok(opened) => Ok(Some(opened)),
            Err(_) if self.leads_nowhere() => Ok(None),
            Err(_) => open().map(Some),
        }
    }

    /// Whether the path leads to no file, and to no directory that could have one: as while links
    /// are switched.
    fn leads_nowhere(&self) -> bool {
        !self.path.exists() && (self.path.is_symlink() || !directory_of(&self.path).is_dir())
    }

    /// Checks an existing file and its location, without opening it.
    fn check(&self) -> Result<FileId> {
        let found =
            std::fs::metadata(&self.path).map_err(|error| not_opened(&self.path, &error))?;
        if found.is_dir() {
            return Err(Error::protocol(
                "It is a directory: name a file, which need not exist yet.",
            ));
        }
        if !found.is_file() {
            return Err(Error::protocol("It is not a regular file: name another one."));
        }
        // SQLite finds the log by the file's name. Another name would have another log, and the
        // same lock could be granted by each.
        if found.nlink() > 1 {
            return Err(Error::protocol(format!(
                "It has {} names (hard links), by each of which the same lock could be granted: \
                 remove the others.",
                found.nlink()
            )));
        }
        if is_mounted_alone(&self.path) {
            return Err(Error::protocol(
                "It is mounted into its directory by itself, without the -wal and -shm files \
                 beside it, so that the same lock could be granted in both places: mount the \
                 directory that contains it.",
            ));
        }
        self.check_file_system(&self.path)?;
        Ok(FileId::from(&found))
    }

    fn check_file_system(&self, path: &Path) -> Result<()> {
        match network_of(path) {
            Some(name) if !self.trusts_networks => Err(Error::protocol(format!(
                "It is on a file system of a network ({name}), where locks of files cannot be \
                 relied on and other hosts have other clocks. Name a file on a local disk; or add \
                 network=trust to the URL if this file system is used by one host only and locks \
                 files as a local one does."
            ))),
            _ => Ok(()),
        }
    }
}

/// Whether a file is a mount of its own (a bind mount, as containers have of single files). False
/// on kernels before 5.8, which do not report it.
fn is_mounted_alone(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    is_mount_root(libc::AT_FDCWD, &path, 0).unwrap_or(false)
}

/// Whether a file is the root of a mount, if the kernel tells: by its path from a directory, or, with
/// `AT_EMPTY_PATH`, by its descriptor. glibc has a function for this since 2.28 only.
pub(super) fn is_mount_root(directory: RawFd, path: &CStr, flags: c_int) -> Option<bool> {
    // SAFETY: an all-zero statx is valid; the path ends with a NUL, and `found` is writable.
    unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let asked =
            libc::syscall(libc::SYS_statx, directory, path.as_ptr(), flags, 0_u32, &raw mut found);
        (asked == 0).then_some(found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0)
    }
}

/// The name of the network file system that a file is on, if any.
pub(super) fn network_of(path: &Path) -> Option<&'static str> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero statfs is valid; the path ends with a NUL, and `found` is writable.
    let kind = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &raw mut found) != 0 {
            return None;
        }
        found.f_type
    };
    // The numbers have 32 bits, and are signed on some machines.
    let kind = kind as u64 & 0xffff_ffff;
    NETWORKS.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}
