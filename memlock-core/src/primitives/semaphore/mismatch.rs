//! What to do about another number of permits.

/// What a handle does at its first use if the semaphore has another number of permits than the
/// handle was opened with: see
/// [`Semaphore::with_mismatch`](super::Semaphore::with_mismatch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mismatch {
    /// It goes on with the semaphore's number, and logs a warning: once for each client,
    /// semaphore and pair of numbers.
    #[default]
    Follow,
    /// It changes the semaphore's number to its own, for all clients, as
    /// [`Semaphore::resize`](super::Semaphore::resize).
    Resize,
    /// It fails with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
    Refuse,
}
