//! The free space and the free inodes of a file system.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The free space and the free inodes of the file system of a file.
pub(super) struct Room {
    /// How many bytes this user can still write.
    pub(super) bytes: u64,
    /// Whether no file can be created, however many bytes are left.
    pub(super) has_no_inode: bool,
    pub(super) is_read_only: bool,
}

impl Room {
    /// That of the file at this path, or of its directory if there is no such file.
    pub(super) fn at(path: &Path) -> Option<Room> {
        Room::of(path).or_else(|| Room::of(path.parent()?))
    }

    fn of(path: &Path) -> Option<Room> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: an all-zero statvfs is valid; the path ends with a NUL, and `found` is writable.
        let found = unsafe {
            let mut found: libc::statvfs = std::mem::zeroed();
            (libc::statvfs(path.as_ptr(), &raw mut found) == 0).then_some(found)
        }?;
        Some(Room {
            bytes: (found.f_bavail as u64).saturating_mul(found.f_frsize as u64),
            // Some file systems have no limit, and tell none.
            has_no_inode: found.f_files != 0 && found.f_favail == 0,
            is_read_only: found.f_flag & libc::ST_RDONLY != 0,
        })
    }
}
