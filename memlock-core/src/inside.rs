//! How many threads are inside of something that others may wait to see left.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fork;

/// Counts the threads of this process that are inside. Without a lock, so that a fork catches
/// nobody in it; a child begins with none inside, whoever was there in its parent.
#[derive(Debug, Default)]
pub struct Inside {
    /// The count in the lower half, and above it the process that it is about.
    seen: AtomicU64,
}

const COUNT: u64 = 0xffff_ffff;

/// As long as this is there, its thread is inside.
#[derive(Debug)]
pub struct Entered<'a> {
    inside: &'a Inside,
    process: u64,
}

impl Inside {
    /// Nobody.
    pub const fn new() -> Inside {
        Inside { seen: AtomicU64::new(0) }
    }

    /// Goes in.
    pub fn enter(&self) -> Entered<'_> {
        let process = stamp();
        let add = |seen| Some(if seen & !COUNT == process { seen + 1 } else { process + 1 });
        // It always answers.
        let _ = self.seen.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        Entered { inside: self, process }
    }

    /// Whether anybody is inside.
    pub fn any(&self) -> bool {
        let seen = self.seen.load(Ordering::SeqCst);
        seen & !COUNT == stamp() && seen & COUNT != 0
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // In a child that was made inside, it counts for nobody.
        let less = |seen| (seen & !COUNT == self.process).then(|| seen - 1);
        let _ = self.inside.seen.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

fn stamp() -> u64 {
    fork::generation() << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_left_is_not_inside() {
        let inside = Inside::new();
        assert!(!inside.any());
        let (one, two) = (inside.enter(), inside.enter());
        drop(one);
        assert!(inside.any());
        drop(two);
        assert!(!inside.any());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn in_a_child_nobody_is_inside_not_even_whoever_made_it_there() {
        let inside = Inside::new();
        let entered = inside.enter();
        // SAFETY: the child only touches atomics, then leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = inside.any();
            let childs = inside.enter();
            drop(entered);
            let meanwhile = inside.any();
            drop(childs);
            let right = !before && meanwhile && !inside.any();
            // SAFETY: ends the child without running the test harness's destructors.
            unsafe { libc::_exit(if right { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(inside.any());
        drop(entered);
        assert!(!inside.any());
    }
}
