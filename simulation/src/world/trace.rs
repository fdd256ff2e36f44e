//! The trace of a run.

/// What happened, for readers.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) is_recorded: bool,
    pub(crate) lines: Vec<String>,
    /// A hash of all events: equal for equal runs.
    pub(crate) digest: u64,
    pub(crate) events: u64,
}
