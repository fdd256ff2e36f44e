//! Time, sleep and randomness. memlock takes them from here only, so that a simulation can provide
//! its own.

use std::fmt;
use std::time::Duration;

/// A moment on the boot clock: the time since this machine started, including suspends.
///
/// Leases are counted on this clock because it neither jumps when the time is set nor stops while a
/// laptop sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment this long after the start of the machine.
    pub const fn from_boot(since_boot: Duration) -> Moment {
        Moment(since_boot)
    }

    /// The time since the start of the machine.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration))
    }
}

/// A duration for humans, with about two digits.
pub fn brief(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let whole = duration.as_secs();
    match whole {
        0 if duration.is_zero() => "0 s".to_owned(),
        0 if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        0 if seconds < 1e-2 => format!("{:.2} ms", seconds * 1e3),
        0 => format!("{:.0} ms", seconds * 1e3),
        1..=9 if duration.subsec_millis() >= 50 => format!("{seconds:.1} s"),
        1..=119 => format!("{whole} s"),
        120..=7199 => format!("{} min {} s", whole / 60, whole % 60),
        7200..=172_799 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} days {} h", whole / 86400, whole / 3600 % 24),
    }
}

/// Whole seconds, rounded up.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// The source of time, sleep and randomness.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current moment on the boot clock.
    fn now(&self) -> Moment;

    /// Seconds since 1970, for humans who read an owner record. No decision depends on it.
    fn unix_seconds(&self) -> u64;

    /// Sleeps this long, or less if a signal arrives: the caller then checks its condition again.
    fn sleep(&self, duration: Duration);

    /// Fills `bytes` with random bytes that no other process has.
    ///
    /// # Errors
    /// If the operating system provides none.
    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()>;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment(read(libc::CLOCK_BOOTTIME))
    }

    fn unix_seconds(&self) -> u64 {
        // Whole seconds need no better clock, and this one is cheaper.
        read(libc::CLOCK_REALTIME_COARSE).as_secs()
    }

    fn sleep(&self, duration: Duration) {
        let time = libc::timespec {
            tv_sec: duration.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: duration.subsec_nanos() as _,
        };
        // SAFETY: `time` is a valid timespec, and no remaining time is requested. The call returns
        // early when a signal handler has run, so that Ctrl-C takes effect.
        unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
    }

    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        getrandom::fill(bytes).map_err(std::io::Error::from)
    }
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. The call cannot fail for these two clocks on any Linux since
    // 2.6.39.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_briefly() {
        for (millis, text) in [
            (4, "4.00 ms"),
            (480, "480 ms"),
            (1500, "1.5 s"),
            (48_000, "48 s"),
            (150_000, "2 min 30 s"),
        ] {
            assert_eq!(brief(Duration::from_millis(millis)), text);
        }
        assert_eq!(brief(Duration::from_micros(38)), "38 µs");
        assert_eq!(brief(Duration::from_secs(90_000)), "25 h 0 min");
    }

    #[test]
    fn the_boot_clock_runs_on() {
        let clock = SystemClock;
        let before = clock.now();
        clock.sleep(Duration::from_millis(2));
        assert!(clock.now().since(before) >= Duration::from_millis(2));
        assert_eq!(before.since(clock.now()), Duration::ZERO);
    }
}
