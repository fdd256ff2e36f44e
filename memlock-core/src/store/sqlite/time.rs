//! The host's clock, the same in all of its containers.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::errors::{MOUNT_PROC, not_read};
use super::file::is_mount_root;
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
    /// If the offset of this process's time namespace cannot be read.
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
    pub(super) fn boot_id(&self) -> Result<BootId> {
        #[cfg(test)]
        if let Some(id) = &self.id {
            return Ok(id.clone());
        }
        BootId::read().map_err(|error| not_read(BOOT_ID, &error))
    }
}

/// Whole milliseconds, rounded down.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The offset of this process's time namespace, in nanoseconds.
fn own_offset() -> Result<i128> {
    let mut status = String::new();
    let file = File::open(STATUS)
        .and_then(|mut file| file.read_to_string(&mut status).map(|_| file))
        .map_err(|error| not_read(STATUS, &error))?;
    if !is_of_kernel(&file) || !is_of_process(&status, std::process::id()) {
        return Err(unknown("/proc/self is not this process"));
    }
    TimeNamespaces::read().offset()
}

const STATUS: &str = "/proc/self/status";
const OFFSETS: &str = "/proc/self/timens_offsets";

/// Whether this is `/proc/PID/status` of a process with this number in its own PID namespace. The
/// last number is that one, also where `/proc` is of an outer namespace. Kernels without PID
/// namespaces show none.
fn is_of_process(status: &str, pid: u32) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_none_or(|numbers| numbers.split_whitespace().next_back() == Some(&pid.to_string()))
}

fn unknown(why: &str) -> Error {
    Error::config(format!(
        "How far the clock of this process differs from the host's cannot be read, because {why}: \
         {MOUNT_PROC}."
    ))
}

/// What `/proc/self` says about time namespaces.
#[derive(Debug)]
struct TimeNamespaces {
    /// Whether the kernel lists other kinds of namespaces, and this kind not.
    are_unknown_to_kernel: bool,
    own: io::Result<PathBuf>,
    of_children: io::Result<PathBuf>,
    /// How far the clocks of the children's are ahead of the host's.
    offsets: io::Result<String>,
}

impl TimeNamespaces {
    fn read() -> TimeNamespaces {
        // If the first thread of the process has ended, its links lead nowhere.
        let read = |name: &str| {
            let of_first = std::fs::read_link(format!("/proc/self/ns/{name}"));
            of_first.or_else(|_| std::fs::read_link(format!("/proc/thread-self/ns/{name}")))
        };
        // A process that was set to another user may not list the directory, but look into it.
        let entry = |name: &str| Path::new("/proc/self/ns").join(name).symlink_metadata();
        let is_missing = entry("time").is_err_and(|error| error.kind() == ErrorKind::NotFound);
        TimeNamespaces {
            are_unknown_to_kernel: is_missing && entry("mnt").or_else(|_| entry("user")).is_ok(),
            own: read("time"),
            of_children: read("time_for_children"),
            offsets: std::fs::read_to_string(OFFSETS),
        }
    }

    fn offset(&self) -> Result<i128> {
        /// The host's own, which has no offset.
        const INITIAL: &str = "time:[4026531834]";
        if self.are_unknown_to_kernel {
            return Ok(0);
        }
        match (&self.own, &self.of_children, &self.offsets) {
            (Err(error), ..) => Err(not_read("/proc/self/ns/time", error)),
            (_, Err(error), _) => Err(not_read("/proc/self/ns/time_for_children", error)),
            // The offset of the children's namespace is not this one's.
            (Ok(own), Ok(of_children), _) if own != of_children => Err(Error::config(
                "This process has called unshare(CLONE_NEWTIME), and can no longer read how far \
                 its own clock differs from the host's: connect to the file before that call, or \
                 in a child process.",
            )),
            (Ok(own), ..) if own == Path::new(INITIAL) => Ok(0),
            (.., Err(error)) => Err(not_read(OFFSETS, error)),
            (.., Ok(text)) => boot_offset(text)
                .ok_or_else(|| unknown(&format!("{OFFSETS} shows no offset of the boot clock"))),
        }
    }
}

/// Parses the line `boottime <seconds> <nanoseconds>` of `timens_offsets`.
fn boot_offset(text: &str) -> Option<i128> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i128>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(seconds)), Some(Ok(nanos))) => {
            seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
        }
        _ => None,
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

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl BootId {
    fn read() -> io::Result<BootId> {
        let mut file = File::open(BOOT_ID)?;
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
    // SAFETY: the descriptor is open, an all-zero statfs is valid, and it is writable.
    unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(file, &raw mut system) != 0 || system.f_type as u64 != PROC {
            return false;
        }
    }
    is_mount_root(file, c"", libc::AT_EMPTY_PATH) != Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "time:[4026532000]";
    const INITIAL: &str = "time:[4026531834]";
    const AHEAD: &str = "monotonic 0 0\nboottime 5000 0\n";

    fn missing<T>() -> io::Result<T> {
        Err(ErrorKind::NotFound.into())
    }

    fn seen(own: &str, of_children: &str, offsets: io::Result<&str>) -> TimeNamespaces {
        TimeNamespaces {
            are_unknown_to_kernel: false,
            own: Ok(own.into()),
            of_children: Ok(of_children.into()),
            offsets: offsets.map(str::to_owned),
        }
    }

    fn refusal(namespaces: &TimeNamespaces) -> String {
        let error = namespaces.offset().unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Config);
        error.to_string()
    }

    #[test]
    fn offsets_of_a_time_namespace_are_read() {
        assert_eq!(boot_offset("monotonic 0 0\nboottime 0 0\n"), Some(0));
        assert_eq!(boot_offset("monotonic  86400 0\nboottime   -7 5\n"), Some(-6_999_999_995));
        let huge = format!("boottime {} 0", i128::MAX);
        for text in ["", "boottime x y", "boottime 5", "monotonic 5 0\n", &huge] {
            assert_eq!(boot_offset(text), None, "{text:?}");
        }
    }

    #[test]
    fn offsets_of_the_children_are_not_applied() {
        assert_eq!(seen(OWN, OWN, Ok(AHEAD)).offset().unwrap(), 5_000_000_000_000);
        for own in [OWN, INITIAL] {
            let said = refusal(&seen(own, "time:[4026532001]", Ok(AHEAD)));
            assert!(said.contains("in a child process"), "{said}");
        }
    }

    #[test]
    fn an_offset_that_cannot_be_read_is_not_taken_for_none() {
        for (namespaces, what) in [
            (TimeNamespaces { own: missing(), ..seen(OWN, OWN, Ok(AHEAD)) }, "ns/time cannot"),
            (TimeNamespaces { of_children: missing(), ..seen(OWN, OWN, Ok(AHEAD)) }, "_children"),
            (seen(OWN, OWN, missing()), "timens_offsets cannot"),
            (seen(OWN, OWN, Ok("")), "no offset of the boot clock"),
        ] {
            let said = refusal(&namespaces);
            assert!(said.contains(what) && said.contains("mount -t proc"), "{said}");
        }
    }

    #[test]
    fn the_hosts_own_namespace_and_kernels_without_any_have_no_offset() {
        assert_eq!(seen(INITIAL, INITIAL, missing()).offset().unwrap(), 0);
        let namespaces = TimeNamespaces {
            are_unknown_to_kernel: true,
            own: missing(),
            of_children: missing(),
            offsets: missing(),
        };
        assert_eq!(namespaces.offset().unwrap(), 0);
    }

    #[test]
    fn a_process_is_known_by_its_number_in_its_own_pid_namespace() {
        assert!(is_of_process("Name:\tx\nPid:\t812\nNSpid:\t812\t34\t7\n", 7));
        assert!(is_of_process("Name:\tx\nPid:\t812\n", 7), "a kernel that has none");
        for pid in [812, 34, 3] {
            assert!(!is_of_process("Pid:\t812\nNSpid:\t812\t34\t7\n", pid));
        }
        let status = std::fs::read_to_string(STATUS).unwrap();
        assert!(is_of_process(&status, std::process::id()));
    }

    #[test]
    fn a_file_that_is_mounted_over_the_boot_id_is_a_containers() {
        assert!(is_of_kernel(&File::open("/proc/version").unwrap()));
        assert!(!is_of_kernel(&File::open("/etc/passwd").unwrap()));
    }
}
