//! Tells an event loop, by a descriptor, which of its calls have ended.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;

/// The calls of one event loop that have ended, by numbers that the loop has given them.
///
/// The loop watches [`Completions::descriptor`], and calls [`Completions::take`] when it is
/// readable. A process that was forked makes one of its own: it would share the descriptor with its
/// parent.
#[derive(Debug)]
pub struct Completions {
    event: Event,
    ended: Mutex<VecDeque<u64>>,
}

struct Ended {
    completions: Arc<Completions>,
    number: u64,
}

impl Completions {
    /// An empty queue.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if no descriptor can be opened.
    pub fn new() -> Result<Arc<Completions>> {
        let event = Event::open().map_err(|error| {
            let text = format!("No descriptor can be opened for an event loop: {error}.");
            Error::new(ErrorKind::Internal, text)
        })?;
        Ok(Arc::new(Completions { event, ended: Mutex::default() }))
    }

    /// Readable while there are calls that have ended and were not taken; now and then though there are
    /// none: take them all the same, which ends that. Poll it, level- or edge-triggered, and neither
    /// read nor close it.
    pub fn descriptor(&self) -> RawFd {
        self.event.descriptor()
    }

    /// Adds a number, by whatever thread.
    pub fn add(&self, number: u64) {
        let mut ended = self.ended();
        ended.push_back(number);
        let is_first = ended.len() == 1;
        // The loop wakes up at once, and must not find the queue locked.
        drop(ended);
        if is_first {
            self.event.signal();
        }
    }

    /// What adds this number when the call has ended: see
    /// [`Pending::notify`](super::Pending::notify).
    pub fn waker(self: &Arc<Self>, number: u64) -> Waker {
        Waker::from(Arc::new(Ended { completions: Arc::clone(self), number }))
    }

    /// The numbers that were added since it was called last, in their order.
    pub fn take(&self) -> Vec<u64> {
        // A number that is added from here on is taken with the others, or signalled later.
        self.event.reset();
        std::mem::take(&mut *self.ended()).into()
    }

    /// The first number that was added and not taken. The descriptor stays readable until there is
    /// none.
    pub fn take_next(&self) -> Option<u64> {
        let mut ended = self.ended();
        let number = ended.pop_front();
        if ended.is_empty() {
            self.event.reset();
        }
        number
    }

    /// Takes this number out, if it was added: nobody wants to know of it any more.
    pub fn forget(&self, number: u64) {
        let mut ended = self.ended();
        let before = ended.len();
        ended.retain(|&other| other != number);
        if ended.is_empty() && before > 0 {
            self.event.reset();
        }
    }

    fn ended(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Ended {
    fn wake(self: Arc<Self>) {
        self.completions.add(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(completions: &Completions) -> bool {
        let mut watched =
            libc::pollfd { fd: completions.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd is given.
        unsafe { libc::poll(&raw mut watched, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_while_there_is_something_to_take() {
        let completions = Completions::new().unwrap();
        assert!(!is_readable(&completions) && completions.take().is_empty());
        let [first, second] = [7, 3].map(|number| completions.waker(number));
        first.wake_by_ref();
        second.wake();
        assert!(is_readable(&completions));
        assert_eq!(completions.take(), [7, 3]);
        assert!(!is_readable(&completions) && completions.take().is_empty());
        first.wake();
        assert!(is_readable(&completions));
    }

    #[test]
    fn the_descriptor_is_readable_until_the_last_one_is_taken_or_forgotten() {
        let completions = Completions::new().unwrap();
        (1..=4).for_each(|number| completions.add(number));
        completions.forget(2);
        completions.forget(5);
        assert_eq!(completions.take_next(), Some(1));
        assert!(is_readable(&completions));
        assert_eq!(completions.take_next(), Some(3));
        assert!(is_readable(&completions));
        completions.forget(4);
        assert!(!is_readable(&completions) && completions.take_next().is_none());
    }
}
