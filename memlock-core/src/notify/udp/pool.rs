//! A list of values that are taken and given back, and never freed as long as the list exists. It
//! only grows, so that a signal handler may traverse it.

use std::iter::successors;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

#[derive(Default)]
pub(super) struct Pool<T> {
    first: OnceLock<Box<Slot<T>>>,
    /// The slot that was given back last, where a search begins.
    last_given_back: AtomicPtr<Slot<T>>,
}

#[derive(Default)]
pub(super) struct Slot<T> {
    value: T,
    is_taken: AtomicBool,
    next: OnceLock<Box<Slot<T>>>,
}

impl<T: Default> Pool<T> {
    /// Takes a slot that is not taken and whose value `fits`, or a new one.
    pub(super) fn take(&self, fits: impl Fn(&T) -> bool) -> &Slot<T> {
        // SAFETY: it is null, or a slot of this list, which only grows.
        let begin = unsafe { self.last_given_back.load(Ordering::SeqCst).as_ref() };
        let takes = |slot: &&Slot<T>| !slot.is_taken() && fits(slot) && slot.try_take();
        if let Some(slot) = from(begin).find(takes) {
            return slot;
        }
        let mut next = &self.first;
        loop {
            let slot = next.get_or_init(Box::default);
            if takes(&&**slot) {
                return slot;
            }
            next = &slot.next;
        }
    }

    /// Gives back a slot of this list.
    pub(super) fn give_back(&self, slot: &Slot<T>) {
        slot.is_taken.store(false, Ordering::SeqCst);
        self.last_given_back.store(std::ptr::from_ref(slot).cast_mut(), Ordering::SeqCst);
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot<T>> {
        from(self.first.get().map(|slot| &**slot))
    }
}

/// In a loop: a list of any length is dropped on a small stack.
impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut slot) = next {
            next = slot.next.take();
        }
    }
}

fn from<T>(slot: Option<&Slot<T>>) -> impl Iterator<Item = &Slot<T>> {
    successors(slot, |slot| slot.next.get().map(|slot| &**slot))
}

impl<T> Slot<T> {
    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::SeqCst)
    }

    /// False if it is taken already.
    pub(super) fn try_take(&self) -> bool {
        !self.is_taken.swap(true, Ordering::SeqCst)
    }
}

impl<T> Deref for Slot<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn a_long_list_is_dropped_on_a_small_stack() {
        let pool = Pool::<u8>::default();
        for _ in 0..3000 {
            pool.take(|_| true);
        }
        assert_eq!(pool.slots().count(), 3000);
        let small = std::thread::Builder::new().stack_size(64 * 1024);
        small.spawn(move || drop(pool)).unwrap().join().unwrap();
    }
}
