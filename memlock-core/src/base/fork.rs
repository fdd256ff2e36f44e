//! Surviving `fork()`.
//!
//! A child inherits copies of the parent's sockets and mutexes. The sockets are shared with the
//! parent, so a single byte written by the child corrupts the parent's stream. A mutex that another
//! thread held at the fork stays locked forever. State that a child must not touch is therefore
//! kept in a `ForkLocal`, which gives every process its own fresh value. The inherited value is
//! left alone and leaked: it cannot even be dropped safely.
//!
//! Nothing is done for a child that a callback, or a signal handler, forked in the middle of a call: it
//! may only call async-signal-safe functions, `exec` or `_exit`.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

static GENERATION: AtomicU64 = AtomicU64::new(0);
static HANDLER_INSTALLED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Identifies the process within its family: a number that changes in the child at every fork.
/// Reading it makes no system call.
pub fn generation() -> u64 {
    #[cfg(memlock_sim)]
    if let Some(pretended) = PRETENDED.get() {
        return pretended;
    }
    if !HANDLER_INSTALLED.load(Ordering::Acquire) {
        // Two threads may both get here and install the handler twice. This is harmless: the number
        // then grows by two at a fork. Waiting for the other thread would take a lock that a fork
        // could catch. SAFETY: `count_fork` only touches an atomic, which is allowed in a forked
        // child.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        if failed == 0 {
            HANDLER_INSTALLED.store(true, Ordering::Release);
        } else {
            log::warn!("memlock cannot watch for forks (out of memory): do not fork this process.");
        }
    }
    GENERATION.load(Ordering::Relaxed)
}

#[cfg(memlock_sim)]
thread_local! {
    static PRETENDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread belongs to a simulated process with this generation.
#[cfg(memlock_sim)]
pub fn pretend(generation: Option<u64>) {
    PRETENDED.set(generation);
}

/// A value of which every process has its own instance.
#[derive(Debug)]
pub(crate) struct ForkLocal<T> {
    oldest: OnceBox<Instance<T>>,
}

/// The value of one process.
#[derive(Debug)]
struct Instance<T> {
    generation: u64,
    value: ManuallyDrop<T>,
    /// The instance of a child of this process.
    younger: OnceBox<Instance<T>>,
}

impl<T> ForkLocal<T> {
    /// No value yet: each process creates its own at first use.
    pub(crate) const fn new() -> ForkLocal<T> {
        ForkLocal { oldest: OnceBox::new() }
    }

    /// This process's value, created by `make` if there is none. Several threads may create one at
    /// the same time; all of them use the one that was stored first, and no thread waits for
    /// another.
    pub(crate) fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let generation = generation();
        if let Some(value) = self.of(generation) {
            return Ok(value);
        }
        let value = ManuallyDrop::new(make()?);
        let mut made = Some(Box::new(Instance { generation, value, younger: OnceBox::new() }));
        let mut place = &self.oldest;
        loop {
            if let Some(slot) = made.take() {
                made = place.set(slot).err();
            }
            match place.get() {
                Some(slot) if slot.generation == generation => return Ok(&slot.value),
                Some(slot) => place = &slot.younger,
                None => {}
            }
        }
    }

    /// This process's value if there is one: for signal handlers, which may not create one.
    pub(crate) fn existing(&self) -> Option<&T> {
        self.of(generation())
    }

    /// Takes as many steps as this process has ancestors that had a value.
    fn of(&self, generation: u64) -> Option<&T> {
        let mut slot = self.oldest.get()?;
        while slot.generation != generation {
            slot = slot.younger.get()?;
        }
        Some(&slot.value)
    }
}

impl<T: Default> ForkLocal<T> {
    /// This process's value, created as the default if there is none.
    pub(crate) fn get(&self) -> &T {
        match self.get_or_try_init(|| Ok::<T, std::convert::Infallible>(T::default())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }
}

impl<T> Drop for Instance<T> {
    fn drop(&mut self) {
        if self.generation == generation() {
            // SAFETY: the value is dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Whether this is true in a forked child, which ends without running anything of its parent's. One that
/// hangs is killed.
#[cfg(test)]
pub(crate) fn in_a_child(is_right: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does what memlock promises that a child may do, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: alarm has no preconditions.
        unsafe { libc::alarm(50) };
        let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(is_right));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!is_right.unwrap_or(false))) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn a_child_gets_a_fresh_value_even_while_the_parent_holds_the_mutex() {
        static LOCAL: ForkLocal<Mutex<u32>> = ForkLocal::new();
        let mut guard = LOCAL.get().lock().unwrap();
        *guard = 8;
        assert!(in_a_child(|| LOCAL.get().try_lock().is_ok_and(|value| *value == 0)));
        assert_eq!(*guard, 8);
    }

    #[test]
    #[cfg_attr(
        not(miri),
        ignore = "it counts a fork that was none, which all tests of this process would see"
    )]
    fn threads_share_one_value_before_and_after_a_fork() {
        let local = ForkLocal::<Mutex<u32>>::new();
        let share_one = || {
            assert!(local.existing().is_none());
            let made: Vec<usize> = std::thread::scope(|scope| {
                let add = || {
                    let value = local.get();
                    *value.lock().unwrap() += 1;
                    assert!(local.existing().is_some_and(|seen| std::ptr::eq(seen, value)));
                    std::ptr::from_ref(value) as usize
                };
                let threads = [scope.spawn(add), scope.spawn(add), scope.spawn(add)];
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(made.iter().all(|&address| address == made[0]));
            assert_eq!(*local.get().lock().unwrap(), 3);
        };
        share_one();
        count_fork();
        share_one();
        assert_eq!(*local.oldest.get().unwrap().value.lock().unwrap(), 3);
    }
}
