//! The cost of a step, in commands or in round trips.

/// The least cost of ten runs. A slow reply, as on a busy machine, is checked by one more request.
pub fn usual_cost<T: Ord + Default>(mut step: impl FnMut() -> T) -> T {
    (0..10).map(|_| step()).min().unwrap_or_default()
}
