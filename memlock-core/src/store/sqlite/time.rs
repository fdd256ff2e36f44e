//! The host's clock, the same in all of its containers.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fork::ForkLocal;

/// The time since the host was started, suspends included.
#[derive(Debug)]
pub(super) struct BootClock {
    clock: Arc<dyn Clock>,
    /// How far this time namespace is ahead of the host, in nanoseconds; negative if it is behind.
    /// A child may be in another namespace than its parent.
    offset: ForkLocal<i128>,
    #[cfg(test)]
    pub(super) id: Option<BootId>,
}

impl BootClock {
    /// # Errors
    /// As [`check`](BootClock::check).
    pub(super) fn new(clock: Arc<dyn Clock>) -> Result<BootClock> {
        let clock = BootClock {
            clock,
            offset: ForkLocal::new(),
            #[cfg(test)]
            id: None,
        };
        clock.check()?;
        Ok(clock)
    }

    /// # Errors
    /// If this process cannot read the offset of its own time namespace.
    pub(super) fn check(&self) -> Result<()> {
        self.offset.get_or_try_init(own_offset).map(drop)
    }

    /// The current time.
    pub(super) fn now(&self) -> Duration {
        let now = self.clock.now().since_boot();
        let offset = self.offset.get_or_try_init(own_offset).map_or(0, |offset| *offset);
        if offset == 0 {
            return now;
        }
        let nanos = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX) - offset;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// The current time in nanoseconds.
    pub(super) fn nanos(&self) -> i64 {
        i64::try_from(self.now().as_nanos()).unwrap_or(i64::MAX)
    }

    /// As [`Clock::sleep`].
    pub(super) fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration);
    }

    /// The current time in milliseconds, rounded down.
    pub(super) fn millis(&self) -> i64 {
        millis(self.now())
    }

    /// Unix time of the wall clock, in milliseconds.
    pub(super) fn wall_millis(&self) -> i64 {
        i64::try_from(self.clock.unix_seconds()).unwrap_or(i64::MAX).saturating_mul(1000)
    }

    /// The id of this boot of the host.
    pub(super) fn boot_id(&self) -> std::io::Result<BootId> {
        #[cfg(test)]
        if let Some(id) = &self.id {
            return Ok(id.clone());
        }
        BootId::read()
    }
}

/// Whole milliseconds, rounded down.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The offset of this process's time namespace, in nanoseconds.
fn own_offset() -> Result<i128> {
    // `timens_offsets` shows the namespace of this process's children, which differs from its own
    // after `unshare`.
    let of = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    offset_if_own(
        of("time") == of("time_for_children"),
        &std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default(),
    )
}

fn offset_if_own(is_own: bool, text: &str) -> Result<i128> {
    if is_own {
        return Ok(offset(text));
    }
    Err(Error::config(
        "This process has called unshare(CLONE_NEWTIME), and can no longer read how far its own \
         clock differs from the host's: connect to the file before that call, or in a child \
         process.",
    ))
}

/// Parses the line `boottime <seconds> <nanoseconds>` of `timens_offsets`.
fn offset(text: &str) -> i128 {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("boottime"));
    let mut numbers = line.unwrap_or_default().split_whitespace().map(str::parse::<i128>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(seconds)), Some(Ok(nanos))) => seconds * 1_000_000_000 + nanos,
        _ => 0,
    }
}

/// The id of a boot of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BootId {
    /// The kernel's: it differs if and only if the host was rebooted.
    Kernel(String),
    /// That of a container that has its own (systemd-nspawn, LXC): a file that is mounted over the
    /// kernel's.
    Container(String),
}

impl BootId {
    fn read() -> std::io::Result<BootId> {
        let mut file = File::open("/proc/sys/kernel/random/boot_id")?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let id = text.trim().to_owned();
        Ok(if is_of_kernel(&file) { BootId::Kernel(id) } else { BootId::Container(id) })
    }
}

/// Whether a file below `/proc` is the kernel's, and no mount.
fn is_of_kernel(file: &File) -> bool {
    const PROC: u64 = 0x9fa0;
    let file = file.as_raw_fd();
    // SAFETY: the descriptor is open, an all-zero statfs and statx are valid, and both are
    // writable.
    unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(file, &raw mut system) != 0 || system.f_type as u64 != PROC {
            return false;
        }
        let mut found: libc::statx = std::mem::zeroed();
        let asked = libc::statx(file, c"".as_ptr(), libc::AT_EMPTY_PATH, 0, &raw mut found);
        asked != 0 || found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_a_time_namespace_are_read() {
        assert_eq!(offset("monotonic 0 0\nboottime 0 0\n"), 0);
        assert_eq!(offset("monotonic  86400 0\nboottime   -7 5\n"), -6_999_999_995);
        assert_eq!((offset(""), offset("boottime x y")), (0, 0));
    }

    #[test]
    fn offsets_of_the_children_are_not_applied() {
        assert_eq!(offset_if_own(true, "boottime 5000 0\n").unwrap(), 5_000_000_000_000);
        let error = offset_if_own(false, "boottime 5000 0\n").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Config);
        assert!(error.to_string().contains("in a child process"), "{error}");
    }

    #[test]
    fn a_file_that_is_mounted_over_the_boot_id_is_a_containers() {
        assert!(is_of_kernel(&File::open("/proc/version").unwrap()));
        assert!(!is_of_kernel(&File::open("/etc/passwd").unwrap()));
    }
}
