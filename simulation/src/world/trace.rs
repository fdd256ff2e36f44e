//! The story of a run.

/// What happened, for people to read.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) told: bool,
    pub(crate) lines: Vec<String>,
    /// Of all that happened: equal for equal runs.
    pub(crate) digest: u64,
    pub(crate) events: u64,
}
